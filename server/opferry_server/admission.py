"""Admission: who may upload, who runs next, and who has to go.

A request passes two lines. In the first it waits for memory: its inputs and outputs are reserved
as a whole before anything is uploaded, so there is no deadlock and no memory bomb. In the second,
its body complete, it waits for a worker. The first is first come, first served; who is next in the
second, `dispatch` says. One number bounds them: the requests inside, from entry to the end of the
run, are at most the workers' slots plus `queue_count`; one more is refused at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import structlog

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry_server.dispatch import Dispatcher
from opferry_server.jobs import Job, JobState, fingerprint_of
from opferry_server.poison import PoisonList
from opferry_server.reports import add_origin
from opferry_server.timeouts import timeout
from opferry_server.workers.arena import ArenaPool
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.running import Again
from opferry_server.workers.supervisor import Worker

log = structlog.get_logger()

FIRST_RUN_GUESS_S = 0.1
"""What a run is taken to last before the first one has been seen."""

MIN_HINT_S, MAX_HINT_S = 0.05, 30.0
"""The bounds of the hint when to try again."""


Progress = Callable[[Job], Awaitable[None]]


class Admission:
    """The two lines, for one event loop."""

    def __init__(
        self, limits: LimitsConfig, pool: ArenaPool, workers: Sequence[Worker], slot_count: int
    ) -> None:
        """Make empty lines.

        Args:
            limits: the server's limits.
            pool: the memory.
            workers: who runs jobs.
            slot_count: how many jobs all workers run at a time when they are ready.
        """
        self._limits = limits
        self._pool = pool
        self._slot_count = slot_count
        self._for_memory: deque[Job] = deque()
        self._for_worker = Dispatcher(workers)
        self._inside: set[Job] = set()
        self._poison = PoisonList()
        self._notes: set[asyncio.Task[None]] = set()
        self._draining = False
        self._handlers = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._run_s = FIRST_RUN_GUESS_S

    @property
    def memory_is_short(self) -> bool:
        """Whether a request waits for memory."""
        return bool(self._for_memory)

    @contextmanager
    def entered(self, job: Job) -> Iterator[None]:
        """Let a job into the first line for the length of a `with` block.

        Raises:
            Problem: SERVER_BUSY with a hint, SHUTTING_DOWN, or LEASE_IN_USE.
        """
        self._check_room()
        if job.lease is not None:
            job.lease.begin_use()
        self._handlers += 1
        self._empty.clear()
        self._inside.add(job)
        job.holders = 1
        if job.lease is None:
            self._for_memory.append(job)
        else:
            job.move(JobState.UPLOADING)
        try:
            self._advance()
            yield
        finally:
            self._leave(job)
            self._handlers -= 1
            if self._handlers == 0:
                self._empty.set()

    def _check_room(self) -> None:
        if self._draining:
            raise _shutting_down()
        allowed = self._slot_count + self._limits.queue_count
        if len(self._inside) >= allowed:
            raise Problem(
                Reason.SERVER_BUSY,
                f"{len(self._inside)} requests are inside, {self._slot_count} can run and "
                f"{self._limits.queue_count} can wait; try again later",
                argument="queue_count",
                given=str(len(self._inside)),
                allowed=str(allowed),
                retry_after_s=self._hint_s(),
            )

    async def body_complete(self, job: Job) -> None:
        """Put a job whose inputs are all in its arena into the second line.

        Raises:
            Problem: REQUEST_POISONED.
        """
        if job.outcome is not None:  # sent away while it was uploading
            return
        if self._poison.suspects(job.call_digest):
            fingerprint = await fingerprint_of(job)
            self._poison.check(fingerprint)
            # should it fault again, nobody else is hit, and its guilt is plain
            job.alone = job.alone or self._poison.knows(fingerprint)
        job.move(JobState.WAITING_FOR_WORKER)
        self._for_worker.append(job)
        self._advance()

    async def wait(self, job: Job, state: JobState, progress: Progress | None = None) -> None:
        """Wait until a job is in *state*, telling *progress* of each change before that.

        Raises:
            Problem: QUEUE_DEADLINE, or whatever ended the job.
        """
        while job.state.value < state.value and job.outcome is None:
            job.changed.clear()
            if progress is not None:
                await progress(job)
            if job.changed.is_set():
                continue
            try:
                async with timeout(self._patience_s(job)):
                    await job.changed.wait()
            except asyncio.TimeoutError:
                raise queued_too_long(self._limits.queue_ms) from None
        if isinstance(job.outcome, Problem):
            raise job.outcome

    def _leave(self, job: Job) -> None:
        """Forget a job, at whatever point it is: its handler is done with it, or was cancelled.

        What a worker still runs, runs on; its memory goes back when it is done.
        """
        if job in self._for_memory:
            self._for_memory.remove(job)
        self._for_worker.discard(job)
        if job.state is not JobState.RUNNING:
            self._inside.discard(job)
        self._drop(job)

    def hold(self, job: Job) -> Callable[[], None]:
        """Keep a job's memory while somebody beside its handler and its worker uses it.

        Returns:
            What lets it go; to be called once.
        """
        job.holders += 1
        return lambda: self._drop(job)

    def drain(self) -> None:
        """Refuse new jobs and send away all that do not run yet."""
        self._draining = True
        for job in [job for job in self._inside if job.state is not JobState.RUNNING]:
            self._send_away(job, _shutting_down())
        self._for_memory.clear()
        self._for_worker.clear()

    async def wait_empty(self, limit_s: float) -> None:
        """Wait until every handler has left, but no longer than *limit_s* seconds."""
        with suppress(asyncio.TimeoutError):
            async with timeout(limit_s):
                await self._empty.wait()

    def workers_changed(self) -> None:
        """Look again: a worker got ready, died, or finished a job."""
        self._advance()

    def _patience_s(self, job: Job) -> float | None:
        """How long the job may still wait; what runs is limited by its worker."""
        if job.state is JobState.RUNNING:
            return None
        waited_s = job.waited_s + time.monotonic() - job.since_s
        return max(0.0, self._limits.queue_ms / 1000 - waited_s)

    def _advance(self) -> None:
        if not self._for_memory and not self._for_worker:
            return
        while self._for_memory:
            job = self._for_memory[0]
            job.arena = self._pool.lease(job.placement.size_bytes)
            if job.arena is None:
                break
            self._for_memory.popleft()
            job.move(JobState.UPLOADING)
        while (found := self._for_worker.take()) is not None:
            self._launch(*found)
        for job, problem in self._for_worker.take_hopeless():
            self._send_away(job, problem)
        for line in (self._for_memory, self._for_worker):
            for position, job in enumerate(line):
                if job.position != position:
                    job.position = position
                    job.changed.set()

    def _send_away(self, job: Job, problem: Problem) -> None:
        """End a job that does not run."""
        self._inside.discard(job)
        job.outcome = problem
        job.changed.set()
        job.sent_away.set()

    def _launch(self, job: Job, worker: Worker) -> None:
        assert job.arena is not None  # noqa: S101 - it is uploaded
        if job.is_over():
            # its handler is about to learn it, and leaves
            self._inside.discard(job)
            return
        job.worker = worker
        job.backend_info = worker.info  # the worker may be another process by the time of the reply
        job.holders += 1
        job.move(JobState.RUNNING)
        request = RunRequest(
            job_id=job.id,
            arena_id=job.arena.id,
            arena_bytes=job.arena.capacity_bytes,
            client=job.client,
            work=job.work,
        )
        worker.run(request, job.arena, lambda outcome: self._finish(job, outcome), alone=job.alone)

    def _finish(self, job: Job, outcome: RunReply | Problem | Again) -> None:
        if isinstance(outcome, Again) and not self._draining and job.holders > 1:
            # back to the head of the line, as if never launched
            if outcome is Again.SUSPECT:
                job.alone = True
                job.suspected_on.add(job.device)
            job.holders -= 1
            job.move(JobState.WAITING_FOR_WORKER)
            self._for_worker.put_back(job)
            return
        if isinstance(outcome, Problem) and job.backend_info is not None:
            add_origin(outcome, job.backend_info)
        self._run_s += 0.2 * (time.monotonic() - job.since_s - self._run_s)
        if isinstance(outcome, Problem) and outcome.reason is Reason.DEVICE_FAULT:
            self._remember(job, outcome)
        else:
            self._settle(job, _shutting_down() if isinstance(outcome, Again) else outcome)

    def _settle(self, job: Job, outcome: RunReply | Problem) -> None:
        self._inside.discard(job)
        job.outcome = outcome
        job.move(JobState.DONE)
        self._drop(job)

    def _remember(self, job: Job, problem: Problem) -> None:
        """Note what faulted a device, and only then tell: who sends it again, is recognised."""

        async def note() -> None:
            try:
                fingerprint = await fingerprint_of(job)
                # it was there when those faulted, and has now shown that it can be the reason
                for device in (*job.suspected_on, job.device):
                    self._poison.note(fingerprint, device)
            finally:
                self._settle(job, problem)

        task = asyncio.ensure_future(note())
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    def _drop(self, job: Job) -> None:
        """Handler and worker each hold the job; with the last of them its memory goes back."""
        job.holders -= 1
        if job.holders == 0 and job.arena is not None:
            arena, job.arena = job.arena, None
            if job.lease is None:
                self._pool.release(arena)
            else:
                job.lease.end_use()
        # in this order: who waits takes the memory over as it is
        self._advance()
        self._pool.shrink()

    def _hint_s(self) -> float:
        expected_s = self._run_s * len(self._inside) / max(1, self._slot_count)
        return min(MAX_HINT_S, max(MIN_HINT_S, expected_s / 2))


def queued_too_long(queue_ms: int) -> Problem:
    """Return the problem of a request that has waited for *queue_ms* milliseconds."""
    return Problem(
        Reason.QUEUE_DEADLINE,
        f"the request waited longer than the server's limit of {queue_ms} ms",
        argument="queue_ms",
        allowed=str(queue_ms),
    )


def _shutting_down() -> Problem:
    return Problem(
        Reason.SHUTTING_DOWN,
        "the server is shutting down; send the request again, to another server or later",
        retry_after_s=1.0,
    )
