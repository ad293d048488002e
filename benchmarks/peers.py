"""What opferry's transport is measured against: the same bytes there and back by other means.

Each peer has a server, run in a process of its own, and calls, made in another. A call sends *size*
bytes and has as many again in memory of the caller's when it returns.
"""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent import futures
from importlib.util import find_spec
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

import opferry
from opferry import tune_malloc
from opferry.embedded import EmbeddedServer

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

LOOPBACK = "127.0.0.1"

ECHO_BACKEND = "benchmarks.backends:EchoBackend"
"""A backend that returns its inputs, by its import path."""

BATCH_BYTES = 2**20
"""Arrow Flight's record batches."""

WIDTH = 128
"""D of the operator's calls."""

Call = Callable[[], object]


class Peer(ABC):
    """One contender."""

    requires: tuple[str, ...] = ()
    """The modules that it imports, and that need not be there."""

    def missing(self) -> str:
        """Return which of the modules are not installed; empty: it can take part."""
        return ", ".join(name for name in self.requires if find_spec(name) is None)

    @abstractmethod
    def serve(self, told: Callable[[str], None]) -> None:
        """Run the server for ever, having *told* its address; in the server's process."""

    @abstractmethod
    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        """Return a call for each caller; in the callers' process."""


class RawTcp(Peer):
    """Plain sockets with buffers that are made once: what the machine can do."""

    def __init__(self, host: str = LOOPBACK) -> None:
        self._host = host

    def serve(self, told: Callable[[str], None]) -> None:
        listener = socket.create_server((self._host, 0))
        told(f"{self._host}:{listener.getsockname()[1]}")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pooled = bytearray()
        while head := connection.recv(8, socket.MSG_WAITALL):
            (size,) = struct.unpack("<q", head)
            if len(pooled) < size:
                pooled = bytearray(size)
            view = memoryview(pooled)[:size]
            _receive(connection, view)
            connection.sendall(view)

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        return [self._call(address, size) for _ in range(callers)]

    def _call(self, address: str, size: int) -> Call:
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data, back = np.ones(size, np.uint8), memoryview(bytearray(size))

        def call() -> None:
            connection.sendall(struct.pack("<q", size))
            connection.sendall(data)
            _receive(connection, back)

        return call


def _receive(connection: socket.socket, view: memoryview) -> None:
    while view:
        view = view[connection.recv_into(view) :]


class GrpcUnary(Peer):
    """A bare grpcio echo: one message there and one back, nothing behind it."""

    def serve(self, told: Callable[[str], None]) -> None:
        tune_malloc()
        server = grpc.server(futures.ThreadPoolExecutor(16), options=UNLIMITED)
        handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
        methods = grpc.method_handlers_generic_handler("echo.Echo", {"Call": handler})
        server.add_generic_rpc_handlers((methods,))
        told(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        server.wait_for_termination()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        tune_malloc()
        method = grpc.insecure_channel(address, UNLIMITED).unary_unary("/echo.Echo/Call")
        data = bytes(size)
        return [lambda: method(data)] * callers


class Flight(Peer):
    """Arrow Flight's do_exchange, one stream a call, 1 MiB batches, into memory that is there."""

    requires = ("pyarrow",)

    def serve(self, told: Callable[[str], None]) -> None:
        from pyarrow import flight

        tune_malloc()

        class Server(flight.FlightServerBase):  # type: ignore[misc]
            def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                writer.begin(reader.schema)
                for chunk in reader:
                    writer.write_batch(chunk.data)

        server = Server("grpc://127.0.0.1:0")
        told(f"127.0.0.1:{server.port}")
        server.serve()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        from pyarrow import flight

        tune_malloc()
        client = flight.connect(f"grpc://{address}")
        return [self._call(client, size) for _ in range(callers)]

    def _call(self, client: Any, size: int) -> Call:
        import pyarrow
        from pyarrow import flight

        data, back = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        schema = pyarrow.schema([("data", pyarrow.uint8())])
        descriptor = flight.FlightDescriptor.for_path("echo")

        def send(writer: Any) -> None:
            for at in range(0, size, BATCH_BYTES):
                column = pyarrow.array(data[at : at + BATCH_BYTES])
                writer.write_batch(pyarrow.record_batch([column], schema=schema))
            writer.done_writing()

        def call() -> None:
            writer, reader = client.do_exchange(descriptor)
            with writer:
                writer.begin(schema)
                sender = threading.Thread(target=send, args=(writer,))
                sender.start()
                at = 0
                for chunk in reader:
                    column = chunk.data.column(0).to_numpy()
                    back[at : at + column.size] = column
                    at += column.size
                sender.join()
            assert at == size

        return call


class OpFerry(Peer):
    """opferry through its public SDK, with a worker process; arrays in, arrays out."""

    def __init__(
        self,
        backend: str = ECHO_BACKEND,
        host: str = LOOPBACK,
        *,
        shared_memory: bool = False,
    ) -> None:
        self._backend = backend
        self._host = host
        self._shared_memory = shared_memory

    def serve(self, told: Callable[[str], None]) -> None:
        options = {"address": f"{self._host}:0", "insecure": ""}
        server = EmbeddedServer(backend=self._backend, options=options)
        told(server.address)
        server.process.wait()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        tune_malloc()
        client = opferry.connect(address, shared_memory=self._shared_memory)
        return [self._call(client, size) for _ in range(callers)]

    def _call(self, client: opferry.Client, size: int) -> Call:
        gradient, cos = rotary_inputs(size)

        def call() -> object:
            return client.apply_rotary_pos_emb_grad(gradient, gradient, cos, cos, layout=4)

        return call


def rotary_inputs(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a gradient of half of *size* bytes, as there are two, and its cos."""
    elements = size // 8
    heads = max(1, min(64, elements // WIDTH // 16))
    gradient = np.ones((elements // WIDTH // heads, heads, WIDTH), np.float32)
    return gradient, np.ones((gradient.shape[0], 1, WIDTH), np.float32)


PEERS: dict[str, Callable[[], Peer]] = {
    "raw TCP, pooled buffers": RawTcp,
    "grpcio unary echo": GrpcUnary,
    "Arrow Flight": Flight,
    "opferry": OpFerry,
    "opferry, shared memory": lambda: OpFerry(shared_memory=True),
    "opferry, CPU reference": lambda: OpFerry("cpu"),
}
"""The contenders by name."""
