"""Pools of device memory and of pinned host memory: bounded, by size class, counted.

An allocation on the device is slow, so blocks are kept. When the device has no memory left, what is
kept is given back and the allocation is tried once more.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import dataclass

from opferry.core.problems import Problem, Reason
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.status import OUT_OF_MEMORY, AclProblem
from opferry_server.backends.aclnn.symbols import VALUES

SMALLEST_BYTES = 4096
"""The smallest block; classes are this times 1, 1.25, 1.5, 1.75, 2, 2.5 and so on."""


def size_class(size_bytes: int) -> int:
    """Return the block size for a request: at most a quarter more than what is asked for."""
    if size_bytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    step = 1 << max(0, (size_bytes - 1).bit_length() - 3)
    return -(-size_bytes // step) * step


@dataclass(frozen=True)
class Block:
    """A leased piece of memory."""

    address: int
    """Where it begins: a device pointer, or a host pointer."""
    capacity_bytes: int
    """Its size."""
    previous_client: str = ""
    """Who leased it before; empty: nobody knows what is in it."""


class Pool:
    """Blocks of one kind of memory. Safe to use from many threads."""

    def __init__(
        self,
        kind: str,
        limit_bytes: int,
        allocate: Callable[[int], int],
        free: Callable[[int], None],
    ) -> None:
        """Make an empty pool.

        Args:
            kind: what it holds, for errors and counters, for example "device memory".
            limit_bytes: the most that is leased and kept together.
            allocate: returns the address of a new block; raises AclProblem.
            free: gives a block back to the runtime.
        """
        self.kind = kind
        self.limit_bytes = limit_bytes
        self._allocate = allocate
        self._free = free
        self._kept: dict[int, list[int]] = {}
        self._clients: dict[int, str] = {}
        self._total_bytes = 0
        self._leased_bytes = 0
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """What lies here ready, or could be given back to the runtime."""
        with self._lock:
            return self._total_bytes - self._leased_bytes

    def lease(self, size_bytes: int, client: str = "") -> Block:
        """Return a block of at least *size_bytes*, at least 1, for *client*.

        Raises:
            Problem: DEVICE_MEMORY_EXHAUSTED, naming what was wanted, what is in use and the limit.
        """
        capacity = size_class(size_bytes)
        with self._lock:
            kept = self._kept.get(capacity)
            address = kept.pop() if kept else self._grow(capacity)
            self._leased_bytes += capacity
            previous = self._clients.get(address, "")
            self._clients[address] = client
        return Block(address, capacity, previous)

    def release(self, block: Block) -> None:
        """Take a block back; nothing on any stream may still use it."""
        with self._lock:
            self._leased_bytes -= block.capacity_bytes
            self._kept.setdefault(block.capacity_bytes, []).append(block.address)

    def trim(self) -> None:
        """Give all that is kept back to the runtime."""
        with self._lock:
            self._trim()

    def _grow(self, capacity: int) -> int:
        if self._total_bytes + capacity > self.limit_bytes:
            self._trim()
        if self._total_bytes + capacity > self.limit_bytes:
            raise Problem(
                Reason.DEVICE_MEMORY_EXHAUSTED,
                f"{capacity} bytes of {self.kind} are needed, {self._leased_bytes} are in use and "
                f"the limit is {self.limit_bytes}",
                argument=self.kind,
                given=str(capacity),
                allowed=str(self.limit_bytes),
                stage="malloc",
            )
        try:
            address = self._allocate(capacity)
        except AclProblem as problem:
            if problem.acl_error not in OUT_OF_MEMORY:
                raise
            self._trim()
            address = self._allocate(capacity)
        self._total_bytes += capacity
        return address

    def _trim(self) -> None:
        for capacity, addresses in self._kept.items():
            for address in addresses:
                self._free(address)
                del self._clients[address]
                self._total_bytes -= capacity
        self._kept.clear()


def device_pool(library: Library, limit_bytes: int) -> Pool:
    """Return a pool of device memory."""

    def allocate(size_bytes: int) -> int:
        pointer = c_void_p()
        policy = VALUES["ACL_MEM_MALLOC_HUGE_FIRST"]
        library.call("aclrtMalloc", ctypes.byref(pointer), size_bytes, policy, stage="malloc")
        return pointer.value or 0

    return Pool(
        "device memory",
        limit_bytes,
        allocate,
        lambda address: library.call("aclrtFree", address, stage="free"),
    )


def pinned_pool(library: Library, limit_bytes: int) -> Pool:
    """Return a pool of pinned host memory, from and to which copies are asynchronous."""

    def allocate(size_bytes: int) -> int:
        pointer = c_void_p()
        library.call("aclrtMallocHost", ctypes.byref(pointer), size_bytes, stage="malloc")
        return pointer.value or 0

    return Pool(
        "pinned memory",
        limit_bytes,
        allocate,
        lambda address: library.call("aclrtFreeHost", address, stage="free"),
    )
