"""Leases: what is granted, which requests may use them, and when their memory comes back."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opferry.core.leases import TOKEN_BYTES, ArenaRegion
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators.call import ALIGNMENT_BYTES, HOST_STEP_BYTES
from opferry_server.leases import HOLDER_LEASE_COUNT, LEASE_COUNT, Leases
from opferry_server.workers.arena import ArenaPool

PAGE = HOST_STEP_BYTES
LIMITS = LimitsConfig(
    memory_bytes=100 * PAGE, leased_bytes=40 * PAGE, client_leased_bytes=16 * PAGE
)


class Desk:
    """Leases over a pool of their own."""

    def __init__(self, limits: LimitsConfig = LIMITS) -> None:
        self.closed: list[int] = []
        self.pool = ArenaPool(limits.memory_bytes, 0, lambda arena: self.closed.append(arena.id))
        self.short = False
        self.leases = Leases(limits, self.pool, lambda: self.short)


def test_a_lease_is_counted_and_given_back() -> None:
    """It takes memory of all requests' as long as it lasts, and then workers forget it."""
    desk = Desk()
    lease = desk.leases.grant("me", 3 * PAGE - 5)
    assert lease is not None
    assert lease.arena.capacity_bytes == 3 * PAGE
    assert desk.pool.total_bytes == 3 * PAGE
    assert desk.pool.leased_count == 1
    assert not desk.leases.end("another", lease.token)
    assert desk.leases.end("me", lease.token)
    assert not desk.leases.end("me", lease.token)
    assert desk.pool.total_bytes == 0
    assert desk.pool.leased_count == 0
    assert desk.closed == [lease.arena.id]


def test_leased_memory_was_nobodys_before_and_is_nobodys_later() -> None:
    """What the pool keeps for others' requests, and what was leased, never meet."""
    limits = LimitsConfig(memory_bytes=100 * PAGE)
    pool = ArenaPool(limits.memory_bytes, 100 * PAGE, lambda arena: None)
    leases = Leases(limits, pool, lambda: False)
    warm = pool.lease(4 * PAGE)
    assert warm is not None
    pool.release(warm)
    lease = leases.grant("me", 4 * PAGE)
    assert lease is not None
    assert lease.arena is not warm
    leases.end("me", lease.token)
    again = pool.lease(4 * PAGE)
    assert again is warm
    pool.release(again)
    pool.trim(0.0)
    assert pool.total_bytes == 0


def test_a_run_that_goes_on_keeps_the_memory_of_a_lease_that_has_ended() -> None:
    """Its client has gone; nothing is closed under the worker."""
    desk = Desk()
    lease = desk.leases.grant("me", PAGE)
    assert lease is not None
    lease.begin_use()
    desk.leases.end_all("me")
    assert desk.pool.total_bytes == PAGE
    with pytest.raises(Problem) as caught:
        desk.leases.find(ArenaRegion(lease.token, 0, PAGE), PAGE)
    assert caught.value.reason is Reason.LEASE_EXPIRED
    lease.end_use()
    assert desk.pool.total_bytes == 0


def test_one_request_uses_a_lease_at_a_time() -> None:
    """The second is refused while the first has not ended, and served after it."""
    desk = Desk()
    lease = desk.leases.grant("me", PAGE)
    assert lease is not None
    lease.begin_use()
    with pytest.raises(Problem) as caught:
        lease.begin_use()
    assert caught.value.reason is Reason.LEASE_IN_USE
    lease.end_use()
    lease.begin_use()
    lease.end_use()
    assert desk.pool.total_bytes == PAGE


def test_each_client_and_all_together_have_a_limit() -> None:
    """Bytes of one connection, bytes of all, and half of the memory at the most."""
    desk = Desk()
    assert desk.leases.grant("a", 17 * PAGE) is None
    assert desk.leases.grant("a", 16 * PAGE - 7) is not None
    assert desk.leases.grant("a", 1) is None
    assert desk.leases.grant("b", 16 * PAGE) is not None
    assert desk.leases.grant("c", 9 * PAGE) is None
    assert desk.leases.grant("c", 8 * PAGE) is not None
    desk.leases.end_all("a")
    assert desk.leases.grant("c", 8 * PAGE) is not None
    generous = Desk(LimitsConfig(memory_bytes=100 * PAGE))
    assert generous.leases.grant("a", 51 * PAGE) is None
    assert generous.leases.grant("a", 50 * PAGE) is not None


def test_descriptors_have_a_limit_too() -> None:
    """However small the leases are."""
    desk = Desk(LimitsConfig())
    for _ in range(HOLDER_LEASE_COUNT):
        assert desk.leases.grant("a", 1) is not None
    assert desk.leases.grant("a", 1) is None
    for number in range(LEASE_COUNT - HOLDER_LEASE_COUNT):
        assert desk.leases.grant(number, 1) is not None
    assert desk.leases.grant("b", 1) is None
    desk.leases.close()


def test_nothing_is_leased_while_a_request_waits_for_memory() -> None:
    """Leases do not pass those who stand in the line."""
    desk = Desk()
    desk.short = True
    assert desk.leases.grant("me", PAGE) is None
    desk.short = False
    assert desk.leases.grant("me", PAGE) is not None


@pytest.mark.parametrize("name", ["leased_bytes", "client_leased_bytes"])
def test_a_limit_of_0_offers_nothing(name: str) -> None:
    """Either limit turns it off."""
    desk = Desk(LimitsConfig(**{name: 0}))
    assert not desk.leases.offered
    assert desk.leases.grant("me", 0) is None


def test_at_the_end_of_the_server_results_stay_in_view() -> None:
    """Who has the memory mapped keeps what is in it, unless he has ended its lease."""
    desk = Desk()
    kept, ended = desk.leases.grant("me", PAGE), desk.leases.grant("me", PAGE)
    assert kept is not None
    assert ended is not None
    views = []
    for lease in (kept, ended):
        fd = os.dup(lease.arena.fd)
        views.append(mmap.mmap(fd, PAGE))
        os.close(fd)
        lease.arena.view[:4] = b"dqdk"
    desk.leases.end("me", ended.token)
    desk.leases.close()
    assert [bytes(view[:4]) for view in views] == [b"dqdk", bytes(4)]
    assert desk.pool.total_bytes == 0
    for view in views:
        view.close()


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 20).map(lambda n: n * ALIGNMENT_BYTES),
    st.integers(-2, 2).map(lambda n: 4 * PAGE + n),
    st.integers(-2, 2).map(lambda n: 4 * PAGE + n * ALIGNMENT_BYTES),
)


@settings(deadline=None)
@given(offset=NUMBERS, size=NUMBERS, need=st.integers(0, 5 * PAGE))
def test_a_region_lies_inside_its_arena_or_is_refused(offset: int, size: int, need: int) -> None:
    """Any numbers: what is aligned, large enough and inside is accepted, the rest refused."""
    desk = Desk()
    lease = desk.leases.grant("me", 4 * PAGE)
    assert lease is not None
    good = (
        offset >= 0
        and offset % ALIGNMENT_BYTES == 0
        and need <= size
        and offset + size <= lease.arena.capacity_bytes
    )
    region = ArenaRegion(lease.token, offset, size)
    if good:
        assert desk.leases.find(region, need) is lease
    else:
        with pytest.raises(Problem) as caught:
            desk.leases.find(region, need)
        assert caught.value.reason is Reason.ARENA_INVALID
        assert caught.value.given in (str(offset), str(size))
    desk.leases.close()


def test_a_forged_token_names_nothing() -> None:
    """Not even one that differs in a bit."""
    desk = Desk()
    lease = desk.leases.grant("me", PAGE)
    assert lease is not None
    assert len(lease.token) == TOKEN_BYTES
    for token in (bytes(TOKEN_BYTES), bytes([lease.token[0] ^ 1]) + lease.token[1:]):
        with pytest.raises(Problem) as caught:
            desk.leases.find(ArenaRegion(token, 0, PAGE), PAGE)
        assert caught.value.reason is Reason.LEASE_EXPIRED
