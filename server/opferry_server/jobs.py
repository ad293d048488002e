"""One request inside the server: where it is, what it holds, what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import IntEnum
from itertools import count

from opferry.core.execution import OperatorPackage, Priority
from opferry.core.problems import Problem
from opferry.operators.call import CheckedCall
from opferry_server.backends.base import BackendInfo
from opferry_server.identity import Identity
from opferry_server.leases import Lease
from opferry_server.poison import Fingerprint, call_digest, data_digest
from opferry_server.workers.arena import Arena
from opferry_server.workers.messages import Placement, RunReply, Work
from opferry_server.workers.supervisor import Worker


class JobState(IntEnum):
    """Where a job is; a later state is a greater one."""

    WAITING_FOR_MEMORY = 0
    UPLOADING = 1
    WAITING_FOR_WORKER = 2
    RUNNING = 3
    DONE = 4


class Order:
    """What a request asks for, but for its data: requests that differ in data alone share one."""

    def __init__(
        self,
        checked: CheckedCall,
        package: OperatorPackage,
        *,
        plan_only: bool = False,
        placement: Placement | None = None,
    ) -> None:
        """Say what is to be done.

        Args:
            checked: the call.
            package: the operator package that is to run it.
            plan_only: whether only the device's first stage is asked; there is no data then.
            placement: where its tensors lie in its arena; None: inputs, then outputs.
        """
        self.checked = checked
        self.package = package
        if placement is None:
            placement = Placement({}, {}, 0) if plan_only else Placement.of(checked)
        self.work = Work(checked.call, checked.outputs, placement, plan_only)
        self.call_digest = call_digest(checked.call, package)


class Job:
    """One request inside the server."""

    _ids = count(1)

    def __init__(
        self,
        order: Order,
        identity: Identity,
        client: str,
        request_id: str,
        is_over: Callable[[], bool],
        priority: Priority,
        lease: Lease | None = None,
        *,
        device_lease: str = "",
        stream_id: str = "",
    ) -> None:
        """Describe a job; `Admission.entered` lets it in.

        Args:
            order: what is to be done.
            identity: whose request it is.
            client: the connection that it came by.
            request_id: the server's id of the request.
            is_over: whether the client has gone or given up; asked before the launch.
            priority: how urgent it is where the request does not say.
            lease: its client's lease of the arena; None: one is reserved for it.
            device_lease: the token of the lease of a device on which it is to run; "": any other.
            stream_id: the server's id of the stream of many that it came by; "" for none.
        """
        self.id = next(Job._ids)
        self.checked = order.checked
        self.package = order.package
        self.work = order.work
        self.placement = order.work.placement
        self.call_digest = order.call_digest
        self.tenant = identity.tenant
        self.subject = identity.subject
        self.account = f"{identity.tenant} {device_lease}".rstrip()
        """Whose share it is of: what runs on a leased device is of none but its own."""
        self.priority = order.checked.call.options.priority or priority
        self.device_lease = device_lease
        self.stream_id = stream_id
        self.entered_s = time.monotonic()
        self.expected_s = 0.0
        """How long it is expected to have its device, in seconds."""
        self.expected_wait_s = 0.0
        """How long it is expected to wait yet, in seconds."""
        self.client = client
        self.request_id = request_id
        self.is_over = is_over
        self.lease = lease
        self.state = JobState.WAITING_FOR_MEMORY
        self.position = 0
        self.told_position = -1
        """The position that its client was told last; -1: none in this line, or nobody asks."""
        self.arena: Arena | None = None if lease is None else lease.arena
        self.worker: Worker | None = None
        self.backend_info: BackendInfo | None = None
        self.outcome: RunReply | Problem | None = None
        self.waited_s = 0.0
        self.since_s = self.entered_s
        self.moved_s: dict[JobState, float] = {}
        self.changed = asyncio.Event()
        self.awaited = JobState.WAITING_FOR_MEMORY
        """The first state of which whoever waits for `changed` is told."""
        self.sent_away = asyncio.Event()
        self.holders = 0
        self.alone = order.checked.call.options.exclusive
        self.suspected_on: set[str] = set()  # the devices that faulted while it ran beside others

    @property
    def device(self) -> str:
        """The device that runs it, or ran it last; "" if none has."""
        return "" if self.backend_info is None else self.backend_info.device

    def output(self, name: str) -> memoryview:
        """Return an output's data in the arena, which the job's handler holds until it leaves."""
        assert self.arena is not None  # noqa: S101 - it is held
        at = self.placement.outputs[name]
        return self.arena.view[at : at + self.checked.outputs[name].data_bytes]

    def golden(self, name: str) -> memoryview:
        """Return an output's golden in the arena, as `output` does; empty where there is none."""
        assert self.arena is not None  # noqa: S101 - it is held
        at = self.placement.goldens.get(name, 0)
        return self.arena.view[at : at + self.placement.golden_bytes(self.checked, name)]

    def next_task_id(self) -> int:
        """Return a number for a judge's task on this job's memory; each has its own."""
        return next(Job._ids)

    def move(self, state: JobState) -> None:
        """Enter a state, and wake whoever waits for it, or for all of them."""
        now = time.monotonic()
        if self.state in (JobState.WAITING_FOR_MEMORY, JobState.WAITING_FOR_WORKER):
            self.waited_s += now - self.since_s
        # a step back is told, too: from here on the time in line is limited again
        told = state >= self.awaited or state < self.state
        self.since_s = now
        self.moved_s[state] = now
        self.state = state
        self.position = 0
        self.told_position = -1
        self.expected_wait_s = 0.0
        if told:
            self.changed.set()


async def fingerprint_of(job: Job) -> Fingerprint:
    """Return what an uploaded job is by its content; a plan has no data."""
    assert job.arena is not None  # noqa: S101 - it is uploaded
    inputs = job.checked.call.inputs
    views = [
        job.arena.view[at : at + inputs[name].data_bytes]
        for name, at in job.placement.inputs.items()
    ]
    return Fingerprint(job.call_digest, await asyncio.to_thread(data_digest, views))
