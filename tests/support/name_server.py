"""A name server for one name, whose addresses a test changes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_A = 1


class NameServer:
    """Answers every question for IPv4 addresses with those that are set, and all others with none.

    A target "dns://HOST:PORT/name:50051" asks it.
    """

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.question_count = 0
        """How often it was asked for addresses."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.authority = f"127.0.0.1:{self._socket.getsockname()[1]}"
        """Where it listens."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                question, peer = self._socket.recvfrom(4096)
                self._socket.sendto(self._answer(question), peer)

    def _answer(self, question: bytes) -> bytes:
        end = question.index(b"\0", 12) + 5
        (kind,) = struct.unpack(">H", question[end - 4 : end - 2])
        found = list(self.addresses) if kind == _A else []
        self.question_count += kind == _A
        head = question[:2] + struct.pack(">HHHHH", 0x8580, 1, len(found), 0, 0)
        # the name is the question's; it may be kept for no time at all
        records = [
            b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 0, 4) + socket.inet_aton(address)
            for address in found
        ]
        return head + question[12:end] + b"".join(records)


@contextlib.contextmanager
def name_server(*addresses: str) -> Iterator[NameServer]:
    """Run a `NameServer` for the length of a `with` block."""
    server = NameServer(*addresses)
    try:
        yield server
    finally:
        server.close()
