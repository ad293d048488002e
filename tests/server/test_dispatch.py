"""The line in front of the workers, in simulated time: nobody waits for ever, nobody is passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from opferry.core.execution import Priority
from opferry_server.device_leases import DeviceLeases
from opferry_server.dispatch import Dispatcher
from opferry_server.fair_line import FairLine
from opferry_server.jobs import Job
from opferry_server.tenants import Tenants
from opferry_server.workers.supervisor import Worker

OF_ONE_TENANT: Any = {"account": "a", "priority": Priority.INTERACTIVE, "device_lease": ""}
"""What all jobs here have in common."""

PACKAGES = ("built-in", "mine", "yours")


@dataclass
class Clock:
    """Simulated time in seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(eq=False)
class SimulatedWorker:
    """What the line needs of a worker; a job ends, and a start is done, when its time is over."""

    clock: Clock
    slots: int
    start_s: float
    broken: frozenset[str] = frozenset()
    package: str = PACKAGES[0]
    ready_since_s: float = 0.0
    starting_until_s: float = -1.0
    jobs: list[tuple[float, Any]] = field(default_factory=list)
    switches: int = 0

    @property
    def ready(self) -> bool:
        return self.clock.now_s >= self.starting_until_s

    @property
    def running_count(self) -> int:
        return len(self.jobs)

    @property
    def free_slots(self) -> int:
        alone = any(job.alone for _, job in self.jobs)
        return 0 if alone or not self.ready else self.slots - len(self.jobs)

    @property
    def has_room(self) -> bool:
        alone = any(job.alone for _, job in self.jobs)
        return not alone and len(self.jobs) < self.slots

    @property
    def idle(self) -> bool:
        return self.ready and not self.jobs

    @property
    def switchable(self) -> bool:
        return self.ready

    def may_serve(self, package: str) -> bool:
        return package not in self.broken

    def trouble(self, package: str) -> str:
        return "it is broken" if package in self.broken else ""

    def refresh(self) -> None:
        """No files."""

    def switch(self, package: str) -> None:
        assert self.idle, "only a worker that runs nothing changes its package"
        self.package = package
        self.switches += 1
        self.starting_until_s = self.ready_since_s = self.clock.now_s + self.start_s

    def run(self, job: Any, seconds: float) -> None:
        assert self.free_slots > 0
        assert job.package.name == self.package
        assert not job.alone or not self.jobs, "one that runs alone has company"
        self.jobs.append((self.clock.now_s + seconds, job))

    def end_jobs(self) -> list[Any]:
        done = [job for end_s, job in self.jobs if end_s <= self.clock.now_s]
        self.jobs = [(end_s, job) for end_s, job in self.jobs if end_s > self.clock.now_s]
        return done


def dispatcher(farm: list[SimulatedWorker], clock: Clock) -> Dispatcher:
    """A line of one tenant, whose runs all cost the same, in front of workers without leases."""
    workers = cast(list[Worker], farm)
    line: FairLine[Job] = FairLine(lambda job: 1.0, lambda job: 1.0, 2.0)
    return Dispatcher(
        workers, line, DeviceLeases(workers, Tenants(), 1.0, "lab", lambda: None), clock
    )


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.sampled_from(PACKAGES),
        st.sampled_from([False, False, False, True]),
        st.floats(0.01, 2),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(
    arrivals=ARRIVALS,
    workers=st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 3)), min_size=1, max_size=4),
)
def test_every_job_runs_and_a_packages_jobs_keep_their_order(
    arrivals: list[tuple[float, str, bool, float]], workers: list[tuple[int, float]]
) -> None:
    """Whatever comes when: all are served, each by its package, those alone without company."""
    clock = Clock()
    farm = [SimulatedWorker(clock, slots, start_s) for slots, start_s in workers]
    line = dispatcher(farm, clock)
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    begun: list[Any] = []
    # every run one after the other, with a change of package before each: nothing takes longer
    limit_s = 40 + sum(seconds + 6 * 3 for *_, seconds in arrivals)
    while len(begun) < len(arrivals):
        assert clock.now_s < limit_s, f"{len(begun)} of {len(arrivals)} have begun"
        while waiting and waiting[0][0] <= clock.now_s:
            _, package, alone, seconds = waiting.pop(0)
            job = SimpleNamespace(
                **OF_ONE_TENANT,
                package=SimpleNamespace(name=package),
                alone=alone,
                entered_s=clock.now_s,
                since_s=clock.now_s,
                seconds=seconds,
            )
            line.append(cast(Job, job))
        for worker in farm:
            worker.end_jobs()
        while (found := line.take()) is not None:
            taken, chosen = cast(tuple[Any, Any], found)
            line.settle(taken, 1.0)
            chosen.run(taken, taken.seconds)
            begun.append(taken)
        clock.now_s += 0.05
    for package in PACKAGES:
        of_package = [job for job in begun if job.package.name == package and not job.alone]
        times = [job.since_s for job in of_package]
        assert times == sorted(times)


def test_jobs_that_nobody_can_serve_are_told_why() -> None:
    """They leave the line with the reason; the others stay."""
    clock = Clock()
    farm = [SimulatedWorker(clock, 1, 1.0, broken=frozenset({"mine"})) for _ in range(2)]
    line = dispatcher(farm, clock)
    for name, worker in (("a", farm[0]), ("b", farm[1])):
        worker.__dict__["name"] = name
    jobs = [
        SimpleNamespace(
            **OF_ONE_TENANT,
            package=SimpleNamespace(name=name),
            alone=False,
            since_s=0.0,
            entered_s=0.0,
        )
        for name in ("mine", "built-in", "mine")
    ]
    for job in jobs:
        line.append(cast(Job, job))
    gone = list(line.take_hopeless())
    assert [job for job, _ in gone] == [jobs[0], jobs[2]]
    assert "a: it is broken; b: it is broken" in gone[0][1].message
    assert list(line) == [jobs[1]]
