"""Calls that use leased memory, a client of the lease socket that is not our SDK, what is held."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import opferry
from opferry._leased_arena import size_class
from opferry.core.leases import MAX_MESSAGE_BYTES, LeaseMessage, LeaseWord
from opferry.v1 import operator_service_pb2 as pb
from tests.support.calls import tnd

NOTHING_IDLE = {"idle_memory_bytes": 0}
"""Limits of a server that holds no arena but those that are leased, or in use."""


class Lessee:
    """One connection to a lease socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)
        self.socket.connect(path)

    def say(self, word: LeaseWord, token: bytes = b"", size_bytes: int = 0) -> None:
        """Send a message."""
        self.socket.send(LeaseMessage(word, token, size_bytes).encode())

    def hear(self) -> tuple[LeaseMessage, list[int]]:
        """Return the next message and its descriptors."""
        data, fds, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE_BYTES, 2)
        return LeaseMessage.decode(data), fds

    def lease(self, size_bytes: int) -> tuple[bytes, mmap.mmap] | None:
        """Lease memory; returns its token and the memory, or None if it is refused."""
        self.say(LeaseWord.LEASE, size_bytes=size_bytes)
        message, fds = self.hear()
        if message.word is LeaseWord.REFUSED:
            assert not fds
            return None
        assert message.word is LeaseWord.LEASED
        (fd,) = fds
        mapped = mmap.mmap(fd, message.size_bytes)
        os.close(fd)
        return message.token, mapped

    def is_closed(self) -> bool:
        """Return whether the server has closed the connection, after what else it says."""
        with contextlib.suppress(ConnectionError):
            while True:
                data = self.socket.recv(MAX_MESSAGE_BYTES)
                if not data:
                    return True
        return True

    def close(self) -> None:
        """Close the connection; its leases end."""
        self.socket.close()


@contextlib.contextmanager
def lessee(path: str) -> Iterator[Lessee]:
    """Connect for the length of a `with` block."""
    connected = Lessee(path)
    try:
        yield connected
    finally:
        connected.close()


def arena(token: bytes, size_bytes: int, offset_bytes: int = 0) -> dict[str, Any]:
    """Return the field of a header that names a region of a lease."""
    region = pb.SharedArena(token=token, size_bytes=size_bytes, offset_bytes=offset_bytes)
    return {"arena": region}


def open_arenas(pid: int) -> int:
    """Return how many arenas a process holds by descriptors; a mapping has one of its own."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "memfd:opferry-arena" in str(entry.readlink()):
                found.add(entry.stat().st_ino)
    return len(found)


def large(seed: int = 0, *, dtype: Any = np.float32, cos: float | None = 0.0) -> dict[str, Any]:
    """Return the arguments of a call that is too large for a unary one."""
    return tnd(1500, 3, 2, 32, dtype=dtype, cos=cos, seed=seed)


def leased_bytes(arguments: dict[str, Any]) -> int:
    """Return what a client leases for a call with query and key: its outputs are like inputs."""
    sizes = {name: value.nbytes for name, value in arguments.items() if name != "layout"}
    outputs = sum(sizes[name] for name in ("query", "key", "cos", "sin"))
    return size_class(sum(sizes.values()) + outputs)


def arrays_of(result: opferry.ApplyRotaryPosEmbGradResult) -> dict[str, np.ndarray]:
    """Return the outputs that a result has, by name."""
    names = ("grad_query", "grad_key", "grad_cos", "grad_sin")
    return {name: array for name in names if (array := getattr(result, name)) is not None}
