"""Which worker a lease gets, and that its end needs nobody's help: with workers of the test's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opferry.core.problems import Problem, Reason
from opferry_server.device_leases import DeviceLease, DeviceLeases
from opferry_server.identity import Identity, Role
from opferry_server.tenants import TenantLimits, Tenants
from opferry_server.workers.supervisor import Worker

A, B = Identity("a", Role.USER), Identity("b", Role.USER)


@dataclass(eq=False)
class DeviceWorker:
    """What leases need of a worker."""

    name: str
    running_count: int = 0
    ready: bool = True
    soc_name: str = "Ascend950PR"

    @property
    def idle(self) -> bool:
        return self.ready and not self.running_count

    @property
    def info(self) -> Any:
        return SimpleNamespace(soc_name=self.soc_name, device="npu:0") if self.ready else None

    def describe(self) -> Any:
        return SimpleNamespace(device="aclnn:0")


def leases_of(*workers: DeviceWorker) -> DeviceLeases:
    tenants = Tenants({"default": TenantLimits(device_leases=2)})
    return DeviceLeases(cast(list[Worker], workers), tenants, 60.0, "lab", lambda: None)


def enter(leases: DeviceLeases, identity: Identity = A, seconds: float = 30.0) -> DeviceLease:
    return leases.enter(identity, "950PR", seconds, "lab-1")


def test_a_lease_moves_to_the_device_that_is_idle_first() -> None:
    async def scene() -> None:
        first, second = DeviceWorker("w0", 1), DeviceWorker("w1", 1)
        leases = leases_of(first, second)
        lease = enter(leases)
        assert not leases.admits(cast(Worker, first), ""), "kept for the lease"
        assert leases.admits(cast(Worker, second), "")
        second.running_count = 0
        leases.advance()
        assert lease.worker is cast(Worker, second)
        assert leases.admits(cast(Worker, first), ""), "others have it again"
        leases.leave(lease)

    asyncio.run(scene())


def test_a_device_that_dies_keeps_no_lease_waiting() -> None:
    async def scene() -> None:
        first, second = DeviceWorker("w0", 1), DeviceWorker("w1", 2)
        leases = leases_of(first, second)
        lease = enter(leases)
        first.ready = False
        leases.advance()
        assert not leases.admits(cast(Worker, second), "")
        second.running_count = 0
        leases.advance()
        assert lease.worker is cast(Worker, second)
        leases.leave(lease)

    asyncio.run(scene())


def test_a_lease_ends_though_its_holder_reads_nothing() -> None:
    async def scene() -> None:
        worker = DeviceWorker("w0")
        leases = leases_of(worker)
        lease = enter(leases, seconds=0.05)
        leases.check(lease.token, "a")
        assert not leases.admits(cast(Worker, worker), "")
        await asyncio.sleep(0.1)
        assert leases.admits(cast(Worker, worker), "")
        assert leases.lapsed(lease.token)
        with pytest.raises(Problem) as ended:
            leases.check(lease.token, "a")
        assert ended.value.reason is Reason.DEVICE_LEASE_EXPIRED

    asyncio.run(scene())


@pytest.mark.parametrize("token", ["", "lab:", "lab:ÿ中", "other:x", ":" * 3, "x" * 10_000])
def test_no_other_token_is_taken(token: str) -> None:
    async def scene() -> None:
        leases = leases_of(DeviceWorker("w0"))
        lease = enter(leases)
        with pytest.raises(Problem) as refused:
            leases.check(token, "a")
        assert refused.value.reason is Reason.DEVICE_LEASE_EXPIRED
        with pytest.raises(Problem):
            leases.check(lease.token, "b")
        leases.leave(lease)

    asyncio.run(scene())


def test_a_kind_is_known_while_its_worker_starts_again() -> None:
    async def scene() -> None:
        worker = DeviceWorker("w0")
        leases = leases_of(worker)
        leases.leave(enter(leases))
        worker.ready = False
        lease = enter(leases)
        assert not lease.granted
        worker.ready = True
        leases.advance()
        assert lease.granted
        leases.leave(lease)

    asyncio.run(scene())


def test_who_waits_when_the_server_ends_is_told_so() -> None:
    async def scene() -> None:
        leases = leases_of(DeviceWorker("w0"))
        held, waiting = enter(leases), enter(leases, B)
        leases.drain()
        leases.check_going_on(held)
        with pytest.raises(Problem) as refused:
            leases.check_going_on(waiting)
        assert refused.value.reason is Reason.SHUTTING_DOWN
        with pytest.raises(Problem):
            enter(leases, B)
        leases.leave(held)
        assert not waiting.granted

    asyncio.run(scene())
