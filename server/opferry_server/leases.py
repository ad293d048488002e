"""Arenas that clients on this host have leased: which there are, and who uses them.

A leased arena was made for its client and is never used for another: the client may keep it mapped.
It counts against the memory of all requests. Who knows a lease's token may use it; the token is
random and told on the lease socket alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from opferry.core.leases import TOKEN_BYTES, ArenaRegion
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators.call import ALIGNMENT_BYTES, HOST_STEP_BYTES, align
from opferry_server.workers.arena import Arena, ArenaPool

HOLDER_LEASE_COUNT = 32
"""The most leases of one connection: each takes a descriptor of the front's."""

LEASE_COUNT = 256
"""The most leases altogether."""


class Lease:
    """One client's arena, from the grant to the end of its lease and of the request that uses it.

    One request uses it at a time. It may outlast the lease: a run that has begun goes on although
    its client has gone.
    """

    def __init__(self, arena: Arena, holder: object, close: Callable[[Lease], None]) -> None:
        """Lease *arena* to *holder*; *close* is called once, when nobody needs it any more."""
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.arena = arena
        self.holder = holder
        self._close = close
        self._used = False
        self._ended = False

    def begin_use(self) -> None:
        """Use the arena for a request, until `end_use`.

        Raises:
            Problem: LEASE_IN_USE if another request does.
        """
        if self._used:
            raise Problem(
                Reason.LEASE_IN_USE,
                "another request uses the leased arena; lease one for each request at a time",
                argument="arena.token",
            )
        self._used = True

    def end_use(self) -> None:
        """Let the arena be used by the next request, or go, if its lease has ended meanwhile."""
        self._used = False
        if self._ended:
            self._close(self)

    def end(self) -> None:
        """End the lease; the arena goes as soon as no request uses it."""
        self._ended = True
        if not self._used:
            self._close(self)


class Leases:
    """All leases of a server. For one thread: the front's event loop."""

    def __init__(
        self, limits: LimitsConfig, pool: ArenaPool, memory_is_short: Callable[[], bool]
    ) -> None:
        """Lease nothing yet.

        Args:
            limits: the server's limits.
            pool: the memory of all requests.
            memory_is_short: whether a request waits for memory; nothing is leased then.
        """
        self._pool = pool
        self._memory_is_short = memory_is_short
        # the other half is for requests without a lease, so that they always get on
        self._most_bytes = min(limits.leased_bytes, limits.memory_bytes // 2)
        self._holder_bytes = min(limits.client_leased_bytes, self._most_bytes)
        self._leases: dict[bytes, Lease] = {}
        self._open: list[Lease] = []

    @property
    def offered(self) -> bool:
        """Whether the limits leave anything to lease."""
        return self._holder_bytes > 0

    @property
    def leased_bytes(self) -> int:
        """What the arenas take that clients have leased."""
        return _bytes_of(self._open)

    def grant(self, holder: object, size_bytes: int) -> Lease | None:
        """Return a new lease of at least *size_bytes*, or None if there is no room for it now."""
        need = align(max(size_bytes, 1), HOST_STEP_BYTES)
        mine = [lease for lease in self._open if lease.holder is holder]
        if len(self._open) >= LEASE_COUNT or len(mine) >= HOLDER_LEASE_COUNT:
            return None
        if _bytes_of(mine) + need > self._holder_bytes or self._memory_is_short():
            return None
        if self.leased_bytes + need > self._most_bytes:
            return None
        arena = self._pool.lease_new(need)
        if arena is None:
            return None
        lease = Lease(arena, holder, self._close)
        self._leases[lease.token] = lease
        self._open.append(lease)
        return lease

    def end(self, holder: object, token: bytes) -> bool:
        """End a lease of *holder*'s; return whether it has such a one."""
        lease = self._leases.get(token)
        if lease is None or lease.holder is not holder:
            return False
        del self._leases[token]
        lease.end()
        return True

    def end_all(self, holder: object) -> None:
        """End all leases of *holder*, who has gone."""
        for lease in [lease for lease in self._leases.values() if lease.holder is holder]:
            self.end(holder, lease.token)

    def has_any(self, holder: object) -> bool:
        """Return whether *holder* has a lease."""
        return any(lease.holder is holder for lease in self._leases.values())

    def find(self, region: ArenaRegion, need_bytes: int) -> Lease:
        """Return the lease that a request names, having checked its region.

        Args:
            region: what the request's header says.
            need_bytes: what its inputs and outputs take, each aligned.

        Raises:
            Problem: LEASE_EXPIRED, or ARENA_INVALID for a region that is misaligned, too small or
                not inside the arena.
        """
        lease = self._leases.get(region.token)
        if lease is None:
            raise Problem(
                Reason.LEASE_EXPIRED,
                "this server has no such lease, or it has ended; lease again, or send chunks",
                argument="arena.token",
            )
        offset, size = region.offset_bytes, region.size_bytes
        capacity = lease.arena.capacity_bytes
        if offset < 0 or offset % ALIGNMENT_BYTES:
            raise _invalid("offset_bytes", offset, f"a multiple of {ALIGNMENT_BYTES}, not negative")
        if size < need_bytes:
            raise _invalid("size_bytes", size, f"at least the {need_bytes} of this request")
        if offset + size > capacity:
            raise _invalid("size_bytes", size, f"at most {capacity - offset}, to the arena's end")
        return lease

    def close(self) -> None:
        """Let go of all arenas as they are: clients may still look at their results."""
        for lease in self._open:
            self._pool.abandon(lease.arena)
        self._open.clear()
        self._leases.clear()

    def _close(self, lease: Lease) -> None:
        if lease in self._open:  # not after `close`
            self._open.remove(lease)
            self._pool.retire(lease.arena)


def _bytes_of(leases: list[Lease]) -> int:
    return sum(lease.arena.capacity_bytes for lease in leases)


def _invalid(field: str, given: int, allowed: str) -> Problem:
    return Problem(
        Reason.ARENA_INVALID,
        f"arena.{field} is {given}; allowed is {allowed}",
        argument=f"arena.{field}",
        given=str(given),
        allowed=allowed,
    )
