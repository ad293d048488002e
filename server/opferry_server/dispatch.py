"""Which job runs next, and on which worker.

The line is first come, first served, with one exception: a worker serves one operator package, and
changing it costs a start. So jobs for the package that a worker serves pass those for others, for
about as long as a change takes: then the worker changes, and those others have their turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from opferry.core.problems import Problem, Reason
from opferry_server.jobs import Job
from opferry_server.workers.supervisor import Worker


class Dispatcher:
    """The line in front of the workers."""

    def __init__(
        self, workers: Sequence[Worker], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Make an empty line in front of *workers*; times are by *clock_s*, in seconds."""
        self._workers = workers
        self._clock_s = clock_s
        self._line: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._line)

    def append(self, job: Job) -> None:
        """Put a job at the end of the line."""
        self._line.append(job)

    def put_back(self, job: Job) -> None:
        """Put a job that was taken, and has not run, back to the head of the line."""
        self._line.appendleft(job)

    def discard(self, job: Job) -> None:
        """Take a job out of the line, if it is there."""
        if job in self._line:
            self._line.remove(job)

    def clear(self) -> None:
        """Empty the line."""
        self._line.clear()

    def take(self) -> tuple[Job, Worker] | None:
        """Take a job out of the line for a worker that has room for it, if there is such a pair."""
        if not self._line:
            return None
        leaving = self._leaving()
        for worker, package in leaving.items():
            if not worker.running_count:
                worker.switch(package)
        for worker in self._workers:
            job = None if worker in leaving else self._first_for(worker)
            if job is None:
                continue
            worker.refresh()
            if worker.free_slots > 0:  # its files have not changed
                self._line.remove(job)
                return job, worker
        return None

    def take_hopeless(self) -> Iterator[tuple[Job, Problem]]:
        """Take out the jobs whose package no worker can serve now, each with the reason."""
        for job in list(self._line):
            if not any(worker.may_serve(job.package.name) for worker in self._workers):
                self._line.remove(job)
                yield job, self._not_served(job.package.name)

    def _not_served(self, package: str) -> Problem:
        troubles = [(worker.name, worker.trouble(package)) for worker in self._workers]
        told = "; ".join(f"{name}: {text}" for name, text in troubles if text)
        return Problem(
            Reason.OPERATOR_PACKAGE_NOT_READY,
            f"no worker can serve operator package {package} now: {told}",
            argument="operator_package",
            given=package,
        )

    def _first_for(self, worker: Worker) -> Job | None:
        """Return the job that a worker takes now.

        One that is to run alone waits for its worker to be idle, and those behind it wait with it;
        workers that it does not wait for pass it by.
        """
        if worker.free_slots <= 0:
            return None
        for job in self._line:
            if job.package.name != worker.package:
                continue
            if not job.alone or worker.idle:
                return job
            if self._waits_for(job) is worker:
                return None
        return None

    def _waits_for(self, job: Job) -> Worker | None:
        """Return the worker that a job waits for which is to run alone: the least busy one."""
        serving = self._serving(job.package.name)
        # one that starts may take its time, or never be ready
        order = [(not worker.ready, worker.running_count, at) for at, worker in enumerate(serving)]
        return serving[min(order)[-1]] if order else None

    def _leaving(self) -> dict[Worker, str]:
        """Return the workers that are to serve another package, and which."""
        leaving: dict[Worker, str] = {}
        served = {
            worker.package
            for worker in self._workers
            if worker.has_room and worker.may_serve(worker.package)
        }
        if all(job.package.name in served for job in self._line):  # nobody has to leave anything
            return leaving
        for job in self._first_of_each_package():
            package = job.package.name
            serving = self._serving(package)
            if any(worker.has_room for worker in serving):
                continue  # one has room, or will have as soon as it is ready
            able = [
                worker
                for worker in self._workers
                if worker not in serving
                and worker not in leaving
                and worker.switchable
                and worker.may_serve(package)
                and self._lets_go(worker, job, is_served=bool(serving))
            ]
            if able:
                chosen = min(able, key=lambda worker: worker.running_count)
                leaving[chosen] = package
        return leaving

    def _serving(self, package: str) -> list[Worker]:
        return [w for w in self._workers if w.package == package and w.may_serve(package)]

    def _first_of_each_package(self) -> list[Job]:
        first: dict[str, Job] = {}
        for job in self._line:
            first.setdefault(job.package.name, job)
        return list(first.values())

    def _lets_go(self, worker: Worker, job: Job, *, is_served: bool) -> bool:
        """Return whether a worker is to leave its package for a job's."""
        own = any(other.package.name == worker.package for other in self._line)
        now_s = self._clock_s()
        waited_s = now_s - job.since_s
        if is_served:
            # others have it; helping them pays once the wait is longer than the change
            return not own and not worker.running_count and waited_s > worker.start_s
        # the job may have waited through the worker's last change: that one needs its use, too
        turn_s = now_s - worker.ready_since_s
        return not own or min(waited_s, turn_s) > worker.start_s
