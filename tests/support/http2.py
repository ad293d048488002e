"""HTTP/2 by hand: what a peer may send that no client of gRPC's would."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return a block of headers, in literals that nobody need remember."""
    block = b""
    for name, value in pairs:
        block += b"\0" + _text(name.encode()) + _text(value.encode())
    return block


def call_headers(path: str, *more: tuple[str, str]) -> bytes:
    """Return the headers of a gRPC call."""
    usual = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
    return headers((*usual, *more))


def _text(raw: bytes) -> bytes:
    return _number(len(raw), 7) + raw


def _number(value: int, bits: int) -> bytes:
    most = 2**bits - 1
    if value < most:
        return bytes([value])
    out = [most]
    value -= most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


class Peer:
    """One connection, spoken by hand."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=30)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self._rest = b""

    def greet(self) -> None:
        """Send what begins a connection."""
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Send a frame."""
        self.socket.sendall(frame(kind, flags, stream, payload))

    def next_frame(self) -> tuple[int, int, int, bytes] | None:
        """Return the next frame: kind, flags, stream and payload; None at the end."""
        try:
            head = self._exactly(9)
            size = int.from_bytes(head[:3], "big")
            payload = self._exactly(size)
        except (EOFError, ConnectionError):
            return None
        return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, payload

    def is_closed_within(self, seconds: float) -> bool:
        """Return whether the other side closes the connection, or resets it, in time."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError
            self._rest += piece
        out, self._rest = self._rest[:size], self._rest[size:]
        return out
