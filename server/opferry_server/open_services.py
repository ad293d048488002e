"""What is served beside opferry's own services: health checks, to anybody, and reflection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from opferry.core.problems import Problem, Reason
from opferry_server.requests import ClientGoneError, Requests
from opferry_server.streams import Context, in_time

HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
"""The health service's full name."""

CONNECTION_CHECKS = 4
"""How many health checks one connection may have open: nobody has to say who he is for them."""

LOCAL_CHECKS = 256
"""How many all connections of a Unix socket may have open: they cannot be told apart."""

_States = health_pb2.HealthCheckResponse


class Health:
    """The health service, for one event loop."""

    def __init__(self, names: Iterable[str], idle_ms: int) -> None:
        """Serve nothing yet.

        Args:
            names: the services that are all served, or not.
            idle_ms: how long a peer may take to send its request, or to read.
        """
        self._names = frozenset(names)
        self._idle_ms = idle_ms
        self._serving = False
        self._watchers: set[asyncio.Event] = set()
        self._open: Counter[str] = Counter()

    def set(self, serving: bool) -> None:
        """Say whether calls are served, to all who watch."""
        if serving != self._serving:
            self._serving = serving
            for watcher in self._watchers:
                watcher.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the service's methods."""
        write = _States.SerializeToString
        return grpc.method_handlers_generic_handler(
            HEALTH_NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check, None, write),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch, None, write),
            },
        )

    async def _check(self, _: Any, context: Context) -> Any:
        return await self._bounded(context, self._checked)

    async def _watch(self, _: Any, context: Context) -> None:
        await self._bounded(context, self._watched)

    async def _checked(self, name: str, context: Context) -> Any:
        if name not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._state(name)

    async def _watched(self, name: str, context: Context) -> None:
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                await in_time(context.write(self._state(name)), self._idle_ms, "read")
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def _bounded(self, context: Context, serve: Any) -> Any:
        """Serve a check of a connection that has not too many open already."""
        peer = context.peer()
        most = CONNECTION_CHECKS if peer.startswith(("ipv4:", "ipv6:")) else LOCAL_CHECKS
        if self._open[peer] >= most:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the connection has {most} health checks open; that is the most",
            )
        self._open[peer] += 1
        try:
            frame = await in_time(context.read(), self._idle_ms, "sent")
            request = health_pb2.HealthCheckRequest.FromString(
                b"" if frame is grpc.aio.EOF else frame
            )
            return await serve(request.service, context)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it is no HealthCheckRequest")
        except Problem as problem:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, problem.message)
        except ClientGoneError:
            return None
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def _state(self, name: str) -> Any:
        if name not in self._names:
            return _States(status=_States.SERVICE_UNKNOWN)
        return _States(status=_States.SERVING if self._serving else _States.NOT_SERVING)


def reflection_handlers(
    names: Iterable[str], requests: Requests, idle_ms: int
) -> grpc.GenericRpcHandler:
    """Return the handlers of reflection, which takes the credentials of a viewer.

    Args:
        names: the services that it tells of, beside itself.
        requests: what is around every call.
        idle_ms: how long a peer may neither send nor read.
    """
    servicer = ReflectionServicer((*names, reflection.SERVICE_NAME))

    async def reflect(_: Any, context: Context) -> None:
        while (frame := await in_time(context.read(), idle_ms, "sent")) is not grpc.aio.EOF:
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(frame)
            except DecodeError:
                text = "the frame is no ServerReflectionRequest"
                raise Problem(Reason.STREAM_PROTOCOL, text) from None
            async for reply in servicer.ServerReflectionInfo(_only(request), context):
                await in_time(context.write(reply.SerializeToString()), idle_ms, "read")

    method = "ServerReflectionInfo"
    wrapped = requests.wrap(method, reflect)
    return grpc.method_handlers_generic_handler(
        reflection.SERVICE_NAME, {method: grpc.stream_stream_rpc_method_handler(wrapped)}
    )


async def _only(request: Any) -> AsyncIterator[Any]:
    yield request
