"""Arenas: the shared memory in which a request's inputs and outputs lie.

An arena is a memfd, sealed against shrinking and growing (an unsealed one lets a peer kill the
reader with SIGBUS). It has no name, so nothing is left behind whoever dies. Arenas are pooled,
because copying into fresh pages costs several times the copy; what the pool holds, leased and idle
together, never exceeds its budget.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from itertools import count

from opferry.operators.call import HOST_STEP_BYTES, align

SLACK = 1.25
"""A pooled arena is used for a request if it is at most so many times what the request needs."""

IDLE_S = 30.0
"""An arena that nobody used for so long is given back to the system."""


class Arena:
    """One piece of shared memory, made by the front."""

    _ids = count(1)

    def __init__(self, capacity_bytes: int) -> None:
        """Make and seal the memory.

        Args:
            capacity_bytes: its size, a multiple of HOST_STEP_BYTES.
        """
        self.id = next(Arena._ids)
        self.capacity_bytes = capacity_bytes
        self.idle_since_s = 0.0
        self.fd = os.memfd_create("opferry-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, capacity_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            self._map = mmap.mmap(self.fd, capacity_bytes)
        except OSError:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back to the system, whoever still has it mapped."""
        # A busy worker lets go of its mapping later; its pages must not outlive their reservation.
        self._map.madvise(mmap.MADV_REMOVE)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the memory; whoever has it mapped still keeps what is in it."""
        os.close(self.fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a cancelled handler's view is still alive; the map goes when it goes


class ArenaPool:
    """All arenas of a server, within one budget. For one thread: the front's event loop."""

    def __init__(
        self, budget_bytes: int, idle_bytes: int, on_close: Callable[[Arena], None]
    ) -> None:
        """Make an empty pool.

        Args:
            budget_bytes: what all arenas together may take.
            idle_bytes: what arenas that nobody uses may take.
            on_close: called before an arena is closed, so that workers let go of it.
        """
        self._budget_bytes = budget_bytes
        self._idle_bytes = idle_bytes
        self._on_close = on_close
        self._idle: list[Arena] = []
        self._total_bytes = 0
        self.leased_count = 0

    @property
    def total_bytes(self) -> int:
        """What all arenas take, leased and idle."""
        return self._total_bytes

    @property
    def idle_bytes(self) -> int:
        """What the arenas take that nobody uses."""
        return sum(idle.capacity_bytes for idle in self._idle)

    def lease(self, size_bytes: int) -> Arena | None:
        """Return an arena of at least *size_bytes*, or None while there is no room for one."""
        need = align(max(size_bytes, 1), HOST_STEP_BYTES)
        arena = self._reuse(need) or self._make(need)
        if arena is not None:
            self.leased_count += 1
        return arena

    def lease_new(self, size_bytes: int) -> Arena | None:
        """Return an arena that nobody has used, as `lease` does; it ends with `retire`.

        For one whose memory another process may see: what the pool keeps holds others' data.
        """
        arena = self._make(align(max(size_bytes, 1), HOST_STEP_BYTES))
        if arena is not None:
            self.leased_count += 1
        return arena

    def retire(self, arena: Arena) -> None:
        """Close a leased arena; nobody leases it again."""
        self.leased_count -= 1
        self._close(arena)

    def abandon(self, arena: Arena) -> None:
        """Let go of a leased arena, but not of what is in it for whoever has it mapped."""
        self.leased_count -= 1
        self._total_bytes -= arena.capacity_bytes
        arena.abandon()

    def release(self, arena: Arena) -> None:
        """Take an arena back. It stays for whoever leases next, until `shrink`."""
        self.leased_count -= 1
        arena.idle_since_s = time.monotonic()
        self._idle.append(arena)

    def shrink(self) -> None:
        """Close what is idle beyond the pool's share, the longest idle first."""
        while self.idle_bytes > self._idle_bytes:
            self._close(self._idle.pop(0))

    def trim(self, idle_s: float = IDLE_S) -> None:
        """Close the arenas that nobody used for *idle_s* seconds."""
        limit = time.monotonic() - idle_s
        for arena in [idle for idle in self._idle if idle.idle_since_s <= limit]:
            self._idle.remove(arena)
            self._close(arena)

    def _reuse(self, need: int) -> Arena | None:
        fits = [a for a in self._idle if need <= a.capacity_bytes <= max(need * SLACK, 64 * 1024)]
        if not fits:
            return None
        # the latest used of the smallest: its pages are the warmest
        best = min(reversed(fits), key=lambda arena: arena.capacity_bytes)
        self._idle.remove(best)
        return best

    def _make(self, need: int) -> Arena | None:
        if self._total_bytes - self.idle_bytes + need > self._budget_bytes:
            return None
        while self._total_bytes + need > self._budget_bytes:
            self._close(self._idle.pop(0))
        while True:
            try:
                arena = Arena(need)
            except OSError:
                # no descriptor, or no memory, just now: idle arenas hold both
                if not self._idle:
                    return None
                self._close(self._idle.pop(0))
                continue
            self._total_bytes += need
            return arena

    def _close(self, arena: Arena) -> None:
        self._total_bytes -= arena.capacity_bytes
        self._on_close(arena)
        arena.close()
