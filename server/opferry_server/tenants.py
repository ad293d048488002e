"""What each tenant may have, and its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opferry.core.problems import Problem, Reason

DEFAULT = "default"
"""The table whose limits hold for the tenants that have none of their own."""


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may have; None: as much as the server allows everybody."""

    weight: float = 1.0
    """Its share of the devices' time, beside the other tenants' weights."""
    requests_in_flight: int | None = None
    """The requests for which it may hold memory at a time; more wait."""
    bytes_in_flight: int | None = None
    """The bytes of inputs and outputs for which it may hold memory at a time; more wait."""
    queue_count: int | None = None
    """The requests that it may have waiting."""
    tensor_bytes: int | None = None
    """Its largest tensor, in bytes."""
    requests_per_s: float | None = None
    """How many requests it may begin in a second; as many may come at once."""
    device_leases: int = 1
    """The devices that it may lease at a time."""


@dataclass
class _Bucket:
    """What is left of a tenant's rate."""

    left: float
    since_s: float


@dataclass
class Use:
    """What a tenant has now."""

    inside_count: int = 0
    """Its requests inside, waiting or not."""
    flight_count: int = 0
    """Those of them that hold memory."""
    flight_bytes: int = 0
    """The bytes that they hold."""


@dataclass
class Tenants:
    """The limits of all tenants, and what each has now, for one event loop."""

    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    clock_s: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _uses: dict[str, Use] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantLimits:
        """Return a tenant's limits."""
        found = self.limits.get(tenant)
        return found if found is not None else self.limits.get(DEFAULT, _EVERYTHING)

    def weight_of(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self.of(tenant).weight

    def use_of(self, tenant: str) -> Use:
        """Return what a tenant has now, to be changed by whoever gives or takes it."""
        use = self._uses.get(tenant)
        if use is None:
            kept = self._uses.items()
            self._uses = {
                name: each for name, each in kept if each.inside_count or each.flight_count
            }
            use = self._uses[tenant] = Use()
        return use

    def may_hold(self, tenant: str, size_bytes: int) -> bool:
        """Return whether a tenant may hold so much more memory for one more request.

        One request is allowed whatever it takes: what is too large was refused before.
        """
        limits, use = self.of(tenant), self.use_of(tenant)
        if not use.flight_count:
            return True
        most_count, most_bytes = limits.requests_in_flight, limits.bytes_in_flight
        return (most_count is None or use.flight_count < most_count) and (
            most_bytes is None or use.flight_bytes + size_bytes <= most_bytes
        )

    def count(self, tenant: str) -> None:
        """Count a request against its tenant's rate.

        Raises:
            Problem: QUOTA_EXCEEDED, with a hint when the next one may come.
        """
        rate = self.of(tenant).requests_per_s
        if rate is None:
            return
        now_s, most = self.clock_s(), max(1.0, rate)
        bucket = self._buckets.setdefault(tenant, _Bucket(most, now_s))
        bucket.left = min(most, bucket.left + (now_s - bucket.since_s) * rate)
        bucket.since_s = now_s
        if bucket.left < 1.0:
            raise Problem(
                Reason.QUOTA_EXCEEDED,
                f"tenant {tenant} may begin {rate:g} requests a second; try again later",
                argument="requests_per_s",
                allowed=f"{rate:g}",
                retry_after_s=(1.0 - bucket.left) / rate,
            )
        bucket.left -= 1.0


_EVERYTHING = TenantLimits()
