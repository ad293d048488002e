"""Which jobs a worker has begun, in memory that outlives it.

When a worker dies, the front must know which of its jobs it ran, and which still lay in the socket:
the first failed, the others can run elsewhere. A message for each beginning would cost every
request a wake-up of the front; a store to shared memory costs nothing.
"""

from __future__ import annotations

import mmap
import os
import struct

_SLOT = struct.Struct("<q")

SLOT_COUNT = mmap.PAGESIZE // _SLOT.size
"""The most threads that one worker has."""


class BegunJobs:
    """One slot for each of a worker's threads, holding the job that it began last."""

    def __init__(self, fd: int) -> None:
        """Map the memory behind *fd*, which `make` made, here or in the front."""
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def make(cls) -> BegunJobs:
        """Make empty slots; the descriptor is for the worker."""
        fd = os.memfd_create("opferry-begun", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def begin(self, thread: int, job_id: int) -> None:
        """Note that a thread begins a job."""
        _SLOT.pack_into(self._map, thread * _SLOT.size, job_id)

    def __contains__(self, job_id: int) -> bool:
        return any(
            _SLOT.unpack_from(self._map, slot * _SLOT.size)[0] == job_id
            for slot in range(SLOT_COUNT)
        )

    def close(self) -> None:
        """Let go of the memory."""
        self._map.close()
        os.close(self.fd)
