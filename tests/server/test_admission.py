"""The lines in front of memory and workers, with a worker that does as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from opferry.core.execution import OperatorPackage, Priority
from opferry.core.limits import MIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import from_array
from opferry.operators import OPERATORS
from opferry.operators.call import Call, check_call
from opferry_server.admission import Admission
from opferry_server.identity import ANYONE
from opferry_server.jobs import Job, JobState, Order
from opferry_server.tenants import Tenants
from opferry_server.workers.arena import ArenaPool
from opferry_server.workers.running import Again
from opferry_server.workers.supervisor import Worker

LIMITS = LimitsConfig(queue_ms=100)


class HandWorker:
    """One slot for the vendor's package; what it was given is finished by the test."""

    package = "built-in"
    info = None
    ready = True
    switchable = False
    start_s = 0.0

    def __init__(self) -> None:
        self.given: list[Callable[[Any], None]] = []
        self.slots = 1

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.given)

    @property
    def running_count(self) -> int:
        return len(self.given)

    @property
    def idle(self) -> bool:
        return not self.given

    @property
    def has_room(self) -> bool:
        return self.free_slots > 0

    def may_serve(self, package: str) -> bool:
        return package == self.package

    def refresh(self) -> None:
        """Its files never change."""

    def run(self, request: Any, arena: Any, finish: Callable[[Any], None], *, alone: bool) -> None:
        self.given.append(finish)


def _job() -> Job:
    operator = OPERATORS["ApplyRotaryPosEmbGrad"]
    arrays, attributes = operator.known_answer_case()
    specs = {name: from_array(name, array).spec for name, array in arrays.items()}
    checked = check_call(Call(operator, attributes, specs), LIMITS)
    order = Order(checked, OperatorPackage("built-in"))
    return Job(order, ANYONE, "client", "request", lambda: False, Priority.INTERACTIVE)


@pytest.mark.parametrize("again", Again)
def test_a_job_that_waits_once_more_does_not_wait_for_ever(again: Again) -> None:
    """Its worker died, and no other comes: the limit of the queue holds as before the launch."""

    async def wait() -> None:
        worker = HandWorker()
        pool = ArenaPool(64 * MIB, 0, lambda arena: None)
        admission = Admission(LIMITS, pool, [cast(Worker, worker)], 1, Tenants(), 60.0, "test")
        job = _job()
        with admission.entered(job):
            await admission.wait(job, JobState.UPLOADING)
            await admission.body_complete(job)
            assert job.state is JobState.RUNNING
            waiting = asyncio.ensure_future(admission.wait(job, JobState.DONE))
            await asyncio.sleep(0)
            worker.slots = 0
            worker.given.pop()(again)
            assert job.state is JobState.WAITING_FOR_WORKER
            with pytest.raises(Problem) as caught:
                await asyncio.wait_for(waiting, 20)
            assert caught.value.reason is Reason.QUEUE_DEADLINE
        assert pool.total_bytes == 0

    asyncio.run(wait())
