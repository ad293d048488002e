"""Devices of one's own for a while: for timing work, which bears no neighbours."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

import structlog

from opferry.core.problems import Problem, Reason
from opferry.wire import DEVICE_LEASE_KEY
from opferry_server.endings import lease_expired, shutting_down
from opferry_server.identity import Identity
from opferry_server.tenants import Tenants
from opferry_server.workers.supervisor import Worker

log = structlog.get_logger()

TOKEN_BYTES = 24
"""The random bytes of a lease's token."""

MARK = ":"
"""What stands in a token behind the id of the server that granted the lease."""


class DeviceLease:
    """One lease of a device: it waits, is granted, ends."""

    def __init__(
        self,
        identity: Identity,
        device_kind: str,
        duration_s: float,
        server_id: str,
        request_id: str,
    ) -> None:
        """Ask for a device, for `DeviceLeases.enter`."""
        self.request_id = request_id
        self.tenant = identity.tenant
        self.subject = identity.subject
        self.device_kind = device_kind
        self.duration_s = duration_s
        self.token = f"{server_id}{MARK}{secrets.token_urlsafe(TOKEN_BYTES)}"
        self.worker: Worker | None = None
        self.until_s = 0.0
        """The end of a granted lease, on the monotonic clock; 0 before the grant."""
        self.position = 0
        self.changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def granted(self) -> bool:
        """Whether the device is there for it, or was."""
        return self.until_s > 0

    @property
    def left_s(self) -> float:
        """How long it lasts yet, in seconds; what it asked for before the grant."""
        if not self.granted:
            return self.duration_s
        return max(0.0, self.until_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether its time has passed."""
        return self.granted and self.left_s == 0

    def grant(self, worker: Worker, on_end: Callable[[], None]) -> None:
        """Begin: the worker runs nothing any more. At the end of the time *on_end* is called."""
        self.worker = worker
        self.until_s = time.monotonic() + self.duration_s
        self._timer = asyncio.get_running_loop().call_later(self.duration_s, on_end)
        self.changed.set()

    def end(self) -> None:
        """End, if it has begun, and forget the end that would have come."""
        self.until_s = min(self.until_s, time.monotonic())
        if self._timer is not None:
            self._timer.cancel()


class DeviceLeases:
    """All leases of a server's devices, for one event loop. Who asked first, is first."""

    def __init__(
        self,
        workers: Sequence[Worker],
        tenants: Tenants,
        longest_s: float,
        server_id: str,
        on_change: Callable[[], None],
    ) -> None:
        """Lease the devices of workers.

        Args:
            workers: the workers of the devices.
            tenants: how many devices each tenant may lease at a time.
            longest_s: how long a lease may last.
            server_id: the server's id, with which its tokens begin.
            on_change: called when a lease has ended, and its device may be free for everybody.
        """
        self._workers = workers
        self._tenants = tenants
        self.longest_s = longest_s
        """How long a lease may last that is asked for from now on."""
        self._server_id = server_id
        self._on_change = on_change
        self._asked: list[DeviceLease] = []
        self._granted: dict[Worker, DeviceLease] = {}
        self._kept: dict[Worker, DeviceLease] = {}
        """The workers that are about to be idle for a lease, and take nothing meanwhile."""
        self._kinds: dict[Worker, str] = {}
        self._draining = False

    def all(self) -> tuple[DeviceLease, ...]:
        """Return the leases: those that are granted, then the others as they were asked for."""
        return (*self._granted.values(), *self._asked)

    def enter(
        self, identity: Identity, device_kind: str, duration_s: float, request_id: str
    ) -> DeviceLease:
        """Ask for a device; `leave` is to be called whatever comes of it.

        Raises:
            Problem: SHUTTING_DOWN; ATTRIBUTE_INVALID for a time that is too long or a device
                that is not here; QUOTA_EXCEEDED.
        """
        if self._draining:
            raise shutting_down()
        if not 0 < duration_s <= self.longest_s:
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"duration_ms is {duration_s * 1000:.0f}; a lease here lasts 1 to "
                f"{self.longest_s * 1000:.0f} ms",
                argument="duration_ms",
                given=f"{duration_s * 1000:.0f}",
                allowed=f"1 to {self.longest_s * 1000:.0f}",
            )
        if not any(self._is_kind(worker, device_kind) for worker in self._workers):
            kinds = ", ".join(sorted({self._kind(worker) for worker in self._workers}))
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"device_kind is {device_kind[:64]!r}; this server has {kinds}",
                argument="device_kind",
                given=device_kind[:64],
                allowed=kinds,
            )
        most = self._tenants.of(identity.tenant).device_leases
        if sum(lease.tenant == identity.tenant for lease in self.all()) >= most:
            raise Problem(
                Reason.QUOTA_EXCEEDED,
                f"tenant {identity.tenant} may have {most} leases of devices here at a time, "
                "granted or waiting",
                argument="device_leases",
                given=str(most + 1),
                allowed=str(most),
                retry_after_s=1.0,
            )
        lease = DeviceLease(identity, device_kind, duration_s, self._server_id, request_id)
        self._asked.append(lease)
        self.advance()
        return lease

    def leave(self, lease: DeviceLease) -> None:
        """End a lease, or take it out of the line; a second time is harmless."""
        lease.end()
        if lease in self._asked:
            self._asked.remove(lease)
        if lease.worker is not None and self._granted.get(lease.worker) is lease:
            del self._granted[lease.worker]
            log.info("device lease ended", worker=lease.worker.name, tenant=lease.tenant)
        lease.changed.set()
        self.advance()
        self._on_change()

    def check_going_on(self, lease: DeviceLease) -> None:
        """Check that a lease that waits still may.

        Raises:
            Problem: SHUTTING_DOWN.
        """
        if self._draining and not lease.granted:
            raise shutting_down()

    def drain(self) -> None:
        """Grant nothing any more."""
        self._draining = True
        for lease in self._asked:
            lease.changed.set()

    def advance(self) -> None:
        """Look again: a worker got ready, died, or finished a request, or a lease came or went."""
        if not self._asked and not self._kept:
            return
        kept, self._kept = self._kept, {}
        if self._draining:
            return
        for lease in list(self._asked):
            free = [
                worker
                for worker in self._workers
                if worker not in self._granted
                and worker not in self._kept
                and worker.ready
                and self._is_kind(worker, lease.device_kind)
            ]
            if not free:
                continue
            # one that is idle; else that which was kept already, or is soonest idle
            worker = min(
                free,
                key=lambda each: (
                    not each.idle,
                    kept.get(each) is not lease,
                    each.running_count,
                ),
            )
            if worker.idle:
                self._grant(lease, worker)
            else:
                self._kept[worker] = lease
        for position, lease in enumerate(self._asked):
            if lease.position != position:
                lease.position = position
                lease.changed.set()

    def _grant(self, lease: DeviceLease, worker: Worker) -> None:
        self._asked.remove(lease)
        self._granted[worker] = lease
        # whether or not its holder's connection takes a word
        lease.grant(worker, lambda: self.leave(lease))
        log.info(
            "device leased",
            worker=worker.name,
            tenant=lease.tenant,
            subject=lease.subject,
            duration_s=lease.duration_s,
        )

    def check(self, token: str, tenant: str) -> None:
        """Check the token that a request carries.

        Raises:
            Problem: DEVICE_LEASE_EXPIRED for one that is not, or no longer, a lease of the tenant.
        """
        server_id, _, rest = token.rpartition(MARK)
        if rest and server_id and server_id != self._server_id:
            raise Problem(
                Reason.DEVICE_LEASE_EXPIRED,
                f"the lease of a device is server {server_id[:64]}'s, and this is "
                f"{self._server_id}: send its requests to that server itself, not to a proxy or a "
                "list",
                argument=DEVICE_LEASE_KEY,
            )
        if not any(
            lease.tenant == tenant
            and secrets.compare_digest(lease.token.encode(), token.encode("utf-8", "replace"))
            for lease in self._granted.values()
        ):
            raise lease_expired()

    def token_of(self, worker: Worker) -> str:
        """Return the token that requests carry which a worker takes; "" for none."""
        lease = self._granted.get(worker) or self._kept.get(worker)
        # before the grant nobody knows it, and the worker takes nothing
        return "" if lease is None else lease.token

    def admits(self, worker: Worker, token: str) -> bool:
        """Return whether a worker takes the requests that carry a token, "" for none."""
        return self.token_of(worker) == token

    def lapsed(self, token: str) -> bool:
        """Return whether the lease of a token, if it is one, has ended."""
        return bool(token) and all(lease.token != token for lease in self._granted.values())

    def _kind(self, worker: Worker) -> str:
        """Return what a worker's device is, or was before its last restart."""
        if worker.info is not None:
            self._kinds[worker] = worker.info.soc_name or worker.info.device
        return self._kinds.get(worker) or worker.describe().device

    def _is_kind(self, worker: Worker, device_kind: str) -> bool:
        return device_kind.lower() in self._kind(worker).lower()
