"""A TCP proxy that counts bytes, and can be as slow and as far away as a wide area network."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

_PIECE_BYTES = 16 * 1024
_WAITING_PIECES = 256
"""The most pieces on their way in one direction of a connection: what a delay can hold up."""


class CountingProxy:
    """Passes connections on to a server until it is closed."""

    def __init__(
        self,
        target: str,
        up_rate: float | None = None,
        down_rate: float | None = None,
        up_delay_s: float = 0.0,
        down_delay_s: float = 0.0,
        source: str = "127.0.0.1",
    ) -> None:
        self._source = (source, 0)
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """Where it listens, "host:port"."""
        self.up_bytes = 0
        """What clients have sent."""
        self.down_bytes = 0
        """What the server has sent."""
        self._lines = {
            "up": _Line(up_rate, up_delay_s),
            "down": _Line(down_rate, down_delay_s),
        }
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Close all connections in the middle of whatever they carry; new ones are taken."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """Close all connections, and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, source_address=self._source)
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._ends += [near, far]
            self._pump(near, far, "up")
            self._pump(far, near, "down")

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(_WAITING_PIECES)
        for target in (self._take, self._give):
            thread = threading.Thread(target=target, args=(source, sink, pieces, way), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _take(
        self,
        source: socket.socket,
        _: socket.socket,
        pieces: queue.Queue[tuple[float, bytes]],
        way: str,
    ) -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(_PIECE_BYTES)
            except OSError:
                piece = b""
            due_s = self._lines[way].due_s(len(piece))
            with self._lock:
                if way == "up":
                    self.up_bytes += len(piece)
                else:
                    self.down_bytes += len(piece)
            pieces.put((due_s, piece))

    def _give(
        self,
        _: socket.socket,
        sink: socket.socket,
        pieces: queue.Queue[tuple[float, bytes]],
        __: str,
    ) -> None:
        is_open = True
        while True:
            due_s, piece = pieces.get()
            if is_open:
                time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                if not piece:
                    sink.shutdown(socket.SHUT_WR)
                elif is_open:
                    sink.sendall(piece)
            except OSError:
                is_open = False
            if not piece:
                return


class _Line:
    """When bytes arrive that are sent now: all connections share the rate of a direction."""

    def __init__(self, rate: float | None, delay_s: float) -> None:
        self._rate = rate
        self._delay_s = delay_s
        self._free_s = 0.0
        self._lock = threading.Lock()

    def due_s(self, size: int) -> float:
        """Take *size* bytes in and return when the last of them arrives."""
        with self._lock:
            start_s = max(self._free_s, time.monotonic())
            self._free_s = start_s + (size / self._rate if self._rate else 0.0)
            return self._free_s + self._delay_s


@contextlib.contextmanager
def counting_proxy(
    address: str,
    *,
    up_rate: float | None = None,
    down_rate: float | None = None,
    up_delay_s: float = 0.0,
    down_delay_s: float = 0.0,
    source: str = "127.0.0.1",
) -> Iterator[CountingProxy]:
    """Run a proxy to *address* for the length of a `with` block.

    Args:
        address: the server's, "host:port".
        up_rate: bytes per second from clients to the server; None: as fast as it goes.
        down_rate: likewise from the server.
        up_delay_s: how long bytes take to the server, in seconds.
        down_delay_s: likewise from it.
        source: the address that the server takes clients to come from; any on this host.
    """
    proxy = CountingProxy(address, up_rate, down_rate, up_delay_s, down_delay_s, source)
    try:
        yield proxy
    finally:
        proxy.close()
