"""Memory that a client has leased from its server: mapped, and used by one call at a time."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

LEAST_BYTES = 2**20
"""The smallest lease: what is leased for one call may then do for another."""


class LeasedArena:
    """Memory that this process shares with the server, for one call at a time."""

    def __init__(
        self, take_back: Callable[[LeasedArena], None], token: bytes, memory: mmap.mmap
    ) -> None:
        """Hold what was leased under *token*; *take_back* is told when nobody uses it any more."""
        self.token = token
        self.view = memoryview(memory)
        """All of it, writable."""
        self.idle_since_s = 0.0
        """When it was given back last, on the monotonic clock."""
        self.spoilt = False
        """Whether its lease is to end: the next call must not have it."""
        self._take_back = take_back

    def give_back(self) -> None:
        """Let a later call use the memory; callable from a finalizer."""
        self._take_back(self)

    def drop(self) -> None:
        """End the lease, as the server may still be writing here, or does not know it."""
        self.spoilt = True
        self._take_back(self)


def size_class(size_bytes: int) -> int:
    """Return what is leased for a call that needs so many bytes: at most an eighth more.

    Calls of about the same size then share their leases.
    """
    need = max(size_bytes, LEAST_BYTES)
    step = 1 << max(0, need.bit_length() - 4)
    return -(-need // step) * step


def mapped(fd: int, size_bytes: int) -> mmap.mmap:
    """Map the memory behind a descriptor, which is closed.

    Raises:
        ValueError: if it could be made smaller: reading it could then end this process.
        OSError: if it is no memory, or cannot be mapped.
    """
    # not everywhere where a client can be imported, but wherever this is called
    import fcntl

    try:
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & needed != needed:
            raise ValueError("the leased memory is not sealed")
        if os.fstat(fd).st_size != size_bytes:
            raise ValueError("the leased memory has another size than was said")
        return mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)
