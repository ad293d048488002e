"""The judges: worker processes that make inputs, compute goldens and compare, beside the device.

They start with the first validation, so that a server which never validates has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from opferry.core.problems import Problem, Reason
from opferry_server.backends.base import BackendSettings
from opferry_server.jobs import Job
from opferry_server.workers.arena import Arena
from opferry_server.workers.messages import RunReply, RunRequest, Task, TaskKind
from opferry_server.workers.running import Again, WorkerStartError
from opferry_server.workers.starts import Bounds
from opferry_server.workers.supervisor import Worker

TRIES = 2
"""How often a task is tried whose judge dies."""

START_TRIES = 3
"""How often the judges are started before a validation is refused."""

URGENCY = {
    TaskKind.COMPARE: 0,
    TaskKind.GOLDEN: 1,
    TaskKind.INPUTS: 2,
    TaskKind.INPUTS_AND_GOLDEN: 2,
}
"""The least goes first: what is begun is ended, and its memory given back, before more is begun."""


@dataclass(eq=False)  # two are never the same
class _Errand:
    """A task on its way."""

    request: RunRequest
    arena: Arena
    done: asyncio.Future[RunReply]
    release: Callable[[], None]
    kind: TaskKind
    tries: int = 0


class Judges:
    """The judges of a server, for one event loop."""

    def __init__(self, settings: Sequence[BackendSettings], bounds: Bounds) -> None:
        """Describe the judges, one for each of *settings*; `start` starts them."""
        self._workers = [
            Worker(
                "cpu",
                {"built-in": own},
                bounds,
                self._advance,
                role="judge",
            )
            for own in settings
        ]
        self.count = len(settings)
        """How many there are."""
        self._line: deque[_Errand] = deque()
        self._starting: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start them, if they have not been; returns when they are ready.

        Raises:
            Problem: SERVER_DEFECT if they cannot be started; the next call tries again.
        """
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_all())
        try:
            await asyncio.shield(self._starting)
        except WorkerStartError as error:
            self._starting = None
            raise Problem(
                Reason.SERVER_DEFECT, f"the judges of the validation did not start: {error}"
            ) from error

    async def _start_all(self) -> None:
        # the judges outlive the request that they start with, and their log lines are not its
        structlog.contextvars.clear_contextvars()
        for tries_left in reversed(range(START_TRIES)):
            idle = [worker for worker in self._workers if not worker.started]
            starts = [worker.start() for worker in idle]
            outcomes = await asyncio.gather(*starts, return_exceptions=True)
            failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            if not failed:
                return
            if not tries_left or not isinstance(failed[0], WorkerStartError):
                raise failed[0]

    async def close(self) -> None:
        """End them; what they do is lost."""
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))

    def forget(self, arena: Arena) -> None:
        """Let go of an arena that is gone."""
        for worker in self._workers:
            worker.forget(arena)

    async def run(
        self, job: Job, task: Task, hold: Callable[[Job], Callable[[], None]]
    ) -> RunReply:
        """Do a task on a job's memory.

        Args:
            job: holds its arena.
            task: what to do.
            hold: keeps the arena, for as long as a judge works on it, whoever waits no longer;
                returns what lets it go.

        Raises:
            Problem: if it cannot be done.
        """
        assert job.arena is not None  # noqa: S101 - the caller holds it
        request = RunRequest(
            job_id=job.next_task_id(),
            arena_id=job.arena.id,
            arena_bytes=job.arena.capacity_bytes,
            client=job.client,
            work=replace(job.work, task=task),
        )
        done: asyncio.Future[RunReply] = asyncio.get_running_loop().create_future()
        errand = _Errand(request, job.arena, done, hold(job), task.kind)
        self._line.append(errand)
        self._advance()
        try:
            return await done
        finally:
            if errand in self._line:  # nobody waits for it any more
                self._line.remove(errand)
                errand.release()

    def _advance(self) -> None:
        if self._line and all(worker.failing for worker in self._workers):
            lost, self._line = self._line, deque()
            for errand in lost:
                errand.release()
                if not errand.done.done():
                    errand.done.set_exception(self._none_left())
        for worker in self._workers:
            while self._line and worker.free_slots > 0:
                errand = min(self._line, key=lambda item: URGENCY[item.kind])
                self._line.remove(errand)
                errand.tries += 1
                worker.run(
                    errand.request,
                    errand.arena,
                    lambda outcome, errand=errand: self._finish(errand, outcome),  # type: ignore[misc]
                    alone=False,
                )

    def _none_left(self) -> Problem:
        told = "; ".join(f"{worker.name}: {worker.trouble('built-in')}" for worker in self._workers)
        return Problem(Reason.SERVER_DEFECT, f"no judge can be started: {told}")

    def _finish(self, errand: _Errand, outcome: RunReply | Problem | Again) -> None:
        died = isinstance(outcome, Again) or (
            isinstance(outcome, Problem) and outcome.reason is Reason.DEVICE_FAULT
        )
        if died and errand.tries < TRIES and not errand.done.done():
            self._line.appendleft(errand)
            self._advance()
            return
        errand.release()
        if not errand.done.done():
            if isinstance(outcome, RunReply):
                errand.done.set_result(outcome)
            else:
                errand.done.set_exception(_told(outcome, died=died))
        self._advance()


def _told(outcome: Problem | Again, *, died: bool) -> Problem:
    if isinstance(outcome, Problem) and not died:
        return outcome
    how = outcome.message if isinstance(outcome, Problem) else "the judge died"
    return Problem(Reason.SERVER_DEFECT, f"the case could not be judged: {how}")
