"""What a tenant may have: rates, memory, and what is kept of those that are away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.problems import Problem, Reason
from opferry_server.tenants import TenantLimits, Tenants


class Clock:
    """Seconds as the test sets them."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_tenant_without_a_table_has_the_default_one() -> None:
    tenants = Tenants({"default": TenantLimits(weight=2), "a": TenantLimits(weight=5)})
    assert (tenants.weight_of("a"), tenants.weight_of("b")) == (5, 2)
    assert Tenants().weight_of("b") == 1


def refused(tenants: Tenants) -> Problem | None:
    try:
        tenants.count("a")
    except Problem as problem:
        return problem
    return None


@given(
    rate=st.floats(0.5, 50),
    pauses=st.lists(st.floats(0, 3), max_size=200),
)
def test_no_second_and_no_hour_sees_more_than_the_rate(rate: float, pauses: list[float]) -> None:
    """In any time, at most what the rate gives in it and one second's worth at once."""
    clock = Clock()
    tenants = Tenants({"a": TenantLimits(requests_per_s=rate)}, clock)
    begun: list[float] = []
    for pause_s in pauses:
        clock.now_s += pause_s
        if (refusal := refused(tenants)) is not None:
            assert refusal.reason is Reason.QUOTA_EXCEEDED
            assert refusal.retry_after_s is not None
            clock.now_s += refusal.retry_after_s + 1e-6
            tenants.count("a")  # the hint tells the truth
        begun.append(clock.now_s)
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            most = max(1.0, rate) + (begun[last] - begun[first]) * rate
            assert last - first + 1 <= most + 1e-3


def test_rates_of_tenants_are_their_own() -> None:
    tenants = Tenants({"default": TenantLimits(requests_per_s=1)}, Clock())
    tenants.count("a")
    tenants.count("b")
    with pytest.raises(Problem, match="tenant a may begin 1 requests a second"):
        tenants.count("a")


def test_memory_is_bounded_but_one_request_always_fits() -> None:
    tenants = Tenants({"a": TenantLimits(requests_in_flight=2, bytes_in_flight=100)})
    use = tenants.use_of("a")
    assert tenants.may_hold("a", 1000)
    use.flight_count, use.flight_bytes = 1, 60
    assert tenants.may_hold("a", 40)
    assert not tenants.may_hold("a", 41)
    use.flight_count, use.flight_bytes = 2, 60
    assert not tenants.may_hold("a", 1)
    assert tenants.may_hold("b", 1 << 50)


def test_what_a_tenant_has_is_known_as_long_as_it_has_it() -> None:
    """Others that come and go do not make its memory forgotten, though it is not inside."""
    tenants = Tenants()
    tenants.use_of("a").flight_count = 1
    for number in range(100):
        tenants.use_of(f"passer-by {number}")
    assert tenants.use_of("a").flight_count == 1
