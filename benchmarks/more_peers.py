"""Further means of the same exchange: plain HTTP, and the remote calls of two large projects.

The two are installed for `make bench-all` only, and imported where they are used.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from benchmarks.peers import LOOPBACK, PEERS, Call, Peer


class RawBodyHttp(Peer):
    """http.server and http.client: the bytes are the bodies, on a connection that stays."""

    def serve(self, told: Callable[[str], None]) -> None:
        server = ThreadingHTTPServer((LOOPBACK, 0), _EchoHandler)
        told(f"{LOOPBACK}:{server.server_address[1]}")
        server.serve_forever()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        return [self._call(address, size) for _ in range(callers)]

    def _call(self, address: str, size: int) -> Call:
        connection = HTTPConnection(address)
        data, back = np.ones(size, np.uint8), memoryview(bytearray(size))
        headers = {"Content-Length": str(size)}

        def call() -> None:
            connection.request("POST", "/", memoryview(data), headers)
            response = connection.getresponse()
            at = 0
            while at < size:
                at += response.readinto(back[at:])
            # the connection is free for the next request when the response has ended
            response.read()

        return call


class _EchoHandler(BaseHTTPRequestHandler):
    """Reads a body into memory that the connection keeps, and sends it back."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pooled = bytearray()

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        if len(self.pooled) < size:
            self.pooled = bytearray(size)
        view = memoryview(self.pooled)[:size]
        at = 0
        while at < size:
            at += self.rfile.readinto(view[at:])
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(view)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name
        """Say nothing."""


class TvmRpc(Peer):
    """TVM's RPC: a tensor is copied to the remote host's memory, and back.

    A server has one session at a time, which callers share; a session does one thing at a time.
    """

    requires = ("tvm", "cloudpickle", "psutil")

    def serve(self, told: Callable[[str], None]) -> None:
        from tvm import rpc

        port = free_port()
        server = rpc.Server(LOOPBACK, port=port, port_end=port + 1, silent=True)
        told(f"{LOOPBACK}:{server.port}")
        threading.Event().wait()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        from tvm import rpc

        host, _, port = address.rpartition(":")
        device = rpc.connect(host, int(port)).cpu(0)
        lock = threading.Lock()
        return [self._call(device, lock, size) for _ in range(callers)]

    def _call(self, device: Any, lock: threading.Lock, size: int) -> Call:
        import tvm

        data, remote = np.ones(size, np.uint8), tvm.runtime.empty((size,), "uint8", device)

        def call() -> object:
            with lock:
                remote.copyfrom(data)
                return remote.numpy()

        return call


class PyTriton(Peer):
    """PyTriton's server with a Python function that returns its input, over gRPC."""

    requires = ("pytriton",)

    def serve(self, told: Callable[[str], None]) -> None:
        from pytriton.model_config import ModelConfig, Tensor
        from pytriton.triton import Triton, TritonConfig

        # its interpreter is a program that is linked to the first libpython that is found, and runs
        # this interpreter's library
        libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        grpc_port = free_port()
        config = TritonConfig(http_port=free_port(), grpc_port=grpc_port, metrics_port=free_port())
        triton = Triton(config=config)
        triton.bind(
            "echo",
            lambda requests: [{"back": request["data"]} for request in requests],
            inputs=[Tensor(name="data", dtype=np.uint8, shape=(-1,))],
            outputs=[Tensor(name="back", dtype=np.uint8, shape=(-1,))],
            config=ModelConfig(batching=False),
        )
        # it has copied itself to a folder of its own, which its own end removes
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            triton.run()
            told(f"{LOOPBACK}:{grpc_port}")
            threading.Event().wait()
        finally:
            triton.stop()

    def calls(self, address: str, size: int, callers: int) -> list[Call]:
        return [self._call(address, size) for _ in range(callers)]

    def _call(self, address: str, size: int) -> Call:
        from pytriton.client import ModelClient

        client, data = ModelClient(f"grpc://{address}", "echo"), np.ones(size, np.uint8)
        return lambda: client.infer_sample(data)


def free_port() -> int:
    """Return a TCP port that nobody listens on, for a server that cannot choose one itself."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


MORE_PEERS: dict[str, Callable[[], Peer]] = {
    "HTTP, raw body": RawBodyHttp,
    "TVM RPC": TvmRpc,
    "PyTriton": PyTriton,
}
"""The contenders by name that take part if all do."""

ALL_PEERS = {**PEERS, **MORE_PEERS}
"""All contenders by name."""
