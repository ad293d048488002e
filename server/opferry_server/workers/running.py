"""Jobs on a worker, and how a worker can end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from opferry.core.problems import Problem, Reason
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.messages import RunReply, RunRequest

Finish = Callable[["RunReply | Problem | Again"], None]
"""What is called with the outcome of a job."""


class Again(Enum):
    """A job whose worker died, and that nobody knows to be the reason: it runs again."""

    NOT_BEGUN = 1
    """It still lay in the socket."""
    SUSPECT = 2
    """It ran beside others: one of them is guilty, so it runs again alone."""


class WorkerStartError(Exception):
    """A worker did not get ready; the text is the backend's own."""

    def __init__(self, text: str, *, device_broken: bool = False) -> None:
        """Say why, and whether the device is out of service because of it."""
        super().__init__(text)
        self.device_broken = device_broken


@dataclass
class RunningJob:
    """A job that a worker has."""

    request: RunRequest
    """What it runs."""
    finish: Finish
    """Called exactly once with what came of it."""
    timer: asyncio.TimerHandle
    """Ends the worker when the job runs too long."""


class RunningJobs:
    """The jobs that one worker has."""

    def __init__(self) -> None:
        self._jobs: dict[int, RunningJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, request: RunRequest, finish: Finish, timer: asyncio.TimerHandle) -> None:
        """Note a job that the worker was given."""
        self._jobs[request.job_id] = RunningJob(request, finish, timer)

    def remove(self, job_id: int) -> Finish:
        """Forget a job that is done and return what to call with its outcome."""
        job = self._jobs.pop(job_id)
        job.timer.cancel()
        return job.finish

    def settle(self, begun: BegunJobs, problem: Problem) -> None:
        """Tell each job what becomes of it now that the worker is dead.

        Args:
            begun: which jobs the worker had begun.
            problem: what ended it: the fault of the one job that it ran, if it ran one.
        """
        jobs = list(self._jobs.values())
        self._jobs.clear()
        suspects = [job for job in jobs if job.request.job_id in begun]
        for job in jobs:
            job.timer.cancel()
            if job not in suspects:
                job.finish(Again.NOT_BEGUN)
            elif len(suspects) > 1:
                job.finish(Again.SUSPECT)
            else:
                job.finish(problem)


def overdue(limit_s: float) -> Problem:
    """Return the problem of a job that ran too long."""
    return Problem(
        Reason.RUN_DEADLINE,
        f"the operator ran longer than the server's limit of {limit_s:g} s; its worker was ended",
        argument="run_ms",
        allowed=f"{limit_s * 1000:.0f}",
    )


def died(worker: str, how: str) -> Problem:
    """Return the problem of a job whose worker died under it."""
    return Problem(
        Reason.DEVICE_FAULT,
        f"{worker} {how} while it ran the request; the worker is being replaced",
        stage="run",
        given=how,
    )


def describe_exit(code: int) -> str:
    """Return in words how a process ended, for example "was ended by SIGKILL"."""
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"exited with status {code}"
