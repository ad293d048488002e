"""The gRPC handlers of a service's methods.

To gRPC all of them take streams: so a call is refused, or is given up, before its message is there.
A handler of one message would only begin when the message is whole, and a peer that never sends it
would have a place among the open calls for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from opferry import wire
from opferry.core.problems import Problem, Reason
from opferry_server.requests import Requests
from opferry_server.streams import Context, in_time

Behavior = Callable[..., Awaitable[Any]]
"""Serves a call: of a request, or for a stream None, and a context."""


def service_handlers(
    service: str,
    methods: Mapping[str, wire.Method],
    behaviors: Mapping[str, Behavior],
    requests: Requests,
    idle_ms: int,
) -> grpc.GenericRpcHandler:
    """Return the handlers of all methods of a service.

    Args:
        service: its full name.
        methods: its methods by name.
        behaviors: what serves each of them.
        requests: what is around every call.
        idle_ms: how long a peer may take until its only message is here.
    """
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: _handler(method, behaviors[name], requests, idle_ms)
            for name, method in methods.items()
        },
    )


async def receive(context: Context, method: wire.Method, idle_ms: int) -> Any:
    """Return the only message of a call.

    Raises:
        Problem: STREAM_IDLE, or STREAM_PROTOCOL if there is none or it is not as the schema says.
        ClientGoneError: if the connection is gone.
    """
    frame = await in_time(context.read(), idle_ms, "sent")
    if frame is grpc.aio.EOF:
        raise Problem(Reason.STREAM_PROTOCOL, "the call ended before its request")
    if method.as_bytes:
        return frame
    try:
        return method.request.FromString(frame)
    except DecodeError:
        text = f"the request is no {method.request.DESCRIPTOR.full_name}"
        raise Problem(Reason.STREAM_PROTOCOL, text) from None


def _handler(method: wire.Method, behavior: Behavior, requests: Requests, idle_ms: int) -> Any:
    if method.streaming:
        return grpc.stream_stream_rpc_method_handler(requests.wrap(method.name, behavior))

    async def with_message(_: Any, context: Context) -> Any:
        return await behavior(await receive(context, method, idle_ms), context)

    make = (
        grpc.stream_stream_rpc_method_handler
        if method.replies
        else grpc.stream_unary_rpc_method_handler
    )
    return make(
        requests.wrap(method.name, with_message),
        None,
        None if method.as_bytes else method.response.SerializeToString,
    )
