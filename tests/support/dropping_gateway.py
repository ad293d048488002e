"""A gateway to a server that drops the first call of each method, as a server that ends does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, dropped: list[str]) -> None:
        self._channel, self._dropped = channel, dropped

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        """Return a handler for any method: bytes in, bytes out."""

        def behave(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            name = details.method.rpartition("/")[2]
            if name not in self._dropped:
                self._dropped.append(name)
                # all that gRPC's server says of a call which it drops unbegun
                context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
            forward: Any = self._channel.stream_stream(details.method)
            yield from forward(requests, timeout=60)

        return grpc.stream_stream_rpc_method_handler(behave)


@contextmanager
def dropping_gateway(address: str) -> Iterator[tuple[str, list[str]]]:
    """Run it before the server at *address*; yield its own, and the methods dropped so far."""
    dropped: list[str] = []
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        gateway = grpc.server(
            ThreadPoolExecutor(8), handlers=[_Handlers(channel, dropped)], options=UNLIMITED
        )
        port = gateway.add_insecure_port("127.0.0.1:0")
        gateway.start()
        try:
            yield f"127.0.0.1:{port}", dropped
        finally:
            gateway.stop(None).wait()
