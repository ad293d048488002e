"""Which job runs next, and on which worker.

The line is the tenants' fair line, with two exceptions. A worker serves one operator package, and
changing it costs a start. So jobs for the package that a worker serves pass those for others, for
about as long as a change takes: then the worker changes, and those others have their turn. And the
worker of a leased device takes the lease's jobs alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from opferry.core.problems import Problem, Reason
from opferry_server.device_leases import DeviceLeases
from opferry_server.endings import lease_expired
from opferry_server.fair_line import FairLine
from opferry_server.jobs import Job
from opferry_server.workers.supervisor import Worker


class Dispatcher:
    """The line in front of the workers."""

    def __init__(
        self,
        workers: Sequence[Worker],
        line: FairLine[Job],
        leases: DeviceLeases,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Lead a line to *workers*.

        Args:
            workers: who runs jobs.
            line: the line, which is empty.
            leases: whose devices the workers' are.
            clock_s: the time in seconds.
        """
        self._workers = workers
        self._line = line
        self._leases = leases
        self._clock_s = clock_s
        self._needs: Counter[tuple[str, str]] = Counter()
        """How many jobs in line need which package, on the device of which lease."""

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._line)

    def append(self, job: Job) -> None:
        """Put a job into the line."""
        self._line.append(job)
        self._needs[_need(job)] += 1

    def put_back(self, job: Job) -> None:
        """Put a job that was taken, and has not run, back to the head of its tenant's line."""
        self._line.put_back(job)
        self._needs[_need(job)] += 1

    def discard(self, job: Job) -> bool:
        """Take a job out of the line, if it is there; return whether it was."""
        found = self._line.discard(job)
        if found:
            self._forget(job)
        return found

    def may_run(self, job: Job) -> bool:
        """Return whether some worker takes a job, as far as leases of devices go.

        One whose own lease has ended is let on, to be told so.
        """
        if self._leases.lapsed(job.device_lease):
            return True
        return any(self._leases.admits(worker, job.device_lease) for worker in self._workers)

    def settle(self, job: Job, seconds: float) -> None:
        """Note for how long a job that was taken had its device."""
        self._line.settle(job, seconds)

    def take(self) -> tuple[Job, Worker] | None:
        """Take a job out of the line for a worker that has room for it, if there is such a pair."""
        if not self._line or not any(map(_may_turn, self._workers)):
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
                self._line.take(job)
                self._forget(job)
                return job, worker
        return None

    def take_hopeless(self) -> Iterator[tuple[Job, Problem]]:
        """Take out the jobs whose package no worker can serve now, each with the reason."""
        if all(self._is_hopeful(need) for need in self._needs):
            return
        for job in list(self._line):
            if self._leases.lapsed(job.device_lease):
                self.discard(job)
                yield job, lease_expired()
            elif not self._is_hopeful(_need(job)):
                self.discard(job)
                yield job, self._not_served(job.package.name)

    def _forget(self, job: Job) -> None:
        need = _need(job)
        self._needs[need] -= 1
        if not self._needs[need]:
            del self._needs[need]

    def _is_hopeful(self, need: tuple[str, str]) -> bool:
        """Return whether some worker serves jobs that need so much, or might."""
        package, token = need
        return any(
            worker.may_serve(package) and (not token or self._leases.admits(worker, token))
            for worker in self._workers
        )

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
            if not self._leases.admits(worker, job.device_lease):
                continue
            if not job.alone or worker.idle:
                return job
            if self._waits_for(job) is worker:
                return None
        return None

    def _waits_for(self, job: Job) -> Worker | None:
        """Return the worker that a job waits for which is to run alone: the least busy one."""
        serving = self._serving(job)
        # one that starts may take its time, or never be ready
        order = [(not worker.ready, worker.running_count, at) for at, worker in enumerate(serving)]
        return serving[min(order)[-1]] if order else None

    def _leaving(self) -> dict[Worker, str]:
        """Return the workers that are to serve another package, and which."""
        leaving: dict[Worker, str] = {}
        served = {
            (worker.package, self._leases.token_of(worker))
            for worker in self._workers
            if worker.has_room and worker.may_serve(worker.package)
        }
        if self._needs.keys() <= served:  # nobody has to leave anything
            return leaving
        for job in self._first_of_each_package():
            package = job.package.name
            serving = self._serving(job)
            if any(worker.has_room for worker in serving):
                continue  # one has room, or will have as soon as it is ready
            able = [
                worker
                for worker in self._workers
                if worker not in serving
                and worker not in leaving
                and worker.switchable
                and worker.may_serve(package)
                and self._leases.admits(worker, job.device_lease)
                and self._lets_go(worker, job, is_served=bool(serving))
            ]
            if able:
                chosen = min(able, key=lambda worker: worker.running_count)
                leaving[chosen] = package
        return leaving

    def _serving(self, job: Job) -> list[Worker]:
        package = job.package.name
        return [
            worker
            for worker in self._workers
            if worker.package == package
            and worker.may_serve(package)
            and self._leases.admits(worker, job.device_lease)
        ]

    def _first_of_each_package(self) -> list[Job]:
        """Return the first job of each package, and of each lease of a device."""
        first: dict[tuple[str, str], Job] = {}
        for job in self._line:
            first.setdefault((job.package.name, job.device_lease), job)
        return list(first.values())

    def _lets_go(self, worker: Worker, job: Job, *, is_served: bool) -> bool:
        """Return whether a worker is to leave its package for a job's."""
        own = (worker.package, self._leases.token_of(worker)) in self._needs
        now_s = self._clock_s()
        waited_s = now_s - job.since_s
        if is_served:
            # others have it; helping them pays once the wait is longer than the change
            return not own and not worker.running_count and waited_s > worker.start_s
        # the job may have waited through the worker's last change: that one needs its use, too
        turn_s = now_s - worker.ready_since_s
        return not own or min(waited_s, turn_s) > worker.start_s


def _may_turn(worker: Worker) -> bool:
    """Return whether a worker may take a job now, or change its package."""
    return worker.free_slots > 0 or not worker.running_count


def _need(job: Job) -> tuple[str, str]:
    """Return what a job needs: a package, and the device of a lease or "" for any other."""
    return job.package.name, job.device_lease
