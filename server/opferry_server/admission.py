"""Admission: who may upload, who runs next, and who has to go.

A request passes two lines. In the first it waits for memory: its inputs and outputs are reserved
as a whole before anything is uploaded, so there is no deadlock and no memory bomb. In the second,
its body complete, it waits for a worker. In both tenants share by weight, in the first bytes, in
the second device time; who is next there, `dispatch` says. One number bounds them for each tenant:
its requests inside, from entry to the end of the run, are at most the workers' slots plus
`queue_count`; one more is refused at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from opferry.core.limits import LimitsConfig, too_large
from opferry.core.problems import Problem, Reason
from opferry_server.device_leases import DeviceLeases
from opferry_server.dispatch import Dispatcher
from opferry_server.endings import ended_by_somebody, queued_too_long, shutting_down
from opferry_server.estimates import Estimates
from opferry_server.fair_line import FairLine
from opferry_server.jobs import Job, JobState, fingerprint_of
from opferry_server.poison import PoisonList
from opferry_server.reports import add_origin
from opferry_server.tenants import Tenants
from opferry_server.timeouts import timeout
from opferry_server.workers.arena import ArenaPool
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.running import Again
from opferry_server.workers.supervisor import Worker

MIN_HINT_S, MAX_HINT_S = 0.05, 30.0
"""The bounds of the hint when to try again."""

OVERDUE = 0.1
"""What a run that takes longer than was expected is taken to need yet, by what it has had."""

HEAD_START_S = 2.0
"""How much device time an interactive request may take before what is batch: single calls never
wait for a batch, and yet a flood of them does not keep the batch from its share."""

HEAD_START_MEMORY = 4
"""The same in memory: one part in so many of it."""

TELL_PERIOD_S = 0.25
"""How often those who wait are told where they are; telling each change to each costs the more the
longer the line is."""

TELL_COUNT = 8
"""How many such periods pass at the most without a word, even if nothing has changed."""

Progress = Callable[[Job], Awaitable[None]]


class Admission:
    """The two lines, for one event loop."""

    def __init__(
        self,
        limits: LimitsConfig,
        pool: ArenaPool,
        workers: Sequence[Worker],
        slot_count: int,
        tenants: Tenants,
        device_lease_s: float,
        server_id: str,
    ) -> None:
        """Make empty lines.

        Args:
            limits: the server's limits.
            pool: the memory.
            workers: who runs jobs.
            slot_count: how many jobs all workers run at a time when they are ready.
            tenants: what each tenant may have, and has.
            device_lease_s: how long a lease of a device may last, in seconds.
            server_id: the server's id.
        """
        self.device_leases = DeviceLeases(
            workers, tenants, device_lease_s, server_id, self._advance
        )
        """Whose the devices are."""
        self._estimates = Estimates()
        self._limits = limits
        self._pool = pool
        self._slot_count = slot_count
        self._tenants = tenants
        self._for_memory: FairLine[Job] = FairLine(
            _memory_bytes, self._weight_of, limits.memory_bytes / HEAD_START_MEMORY
        )
        line: FairLine[Job] = FairLine(_expected_s, self._weight_of, HEAD_START_S)
        self._for_worker = Dispatcher(workers, line, self.device_leases)
        self._inside: dict[Job, None] = {}
        self._teller: asyncio.TimerHandle | None = None
        self._tell_count = 0
        self._poison = PoisonList()
        self._notes: set[asyncio.Task[None]] = set()
        self._draining = False
        self._handlers = 0
        self.observers: list[Callable[[Job, float], None]] = []
        """Told of each run that has ended: the job, and for how many seconds it had its device."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def place_count(self) -> int:
        """How many jobs a tenant may have inside that has no limit of its own."""
        return self._slot_count + self._limits.queue_count

    def limits_of(self, tenant: str) -> LimitsConfig:
        """Return what is allowed to a tenant: the server's limits, or its own where it has some."""
        own = self._tenants.of(tenant)
        limits = self._limits
        if own.tensor_bytes is not None:
            limits = replace(limits, tensor_bytes=min(own.tensor_bytes, limits.tensor_bytes))
        if own.queue_count is not None:
            limits = replace(limits, queue_count=own.queue_count)
        return limits

    @property
    def memory_is_short(self) -> bool:
        """Whether a request waits for memory that its tenant may have."""
        return any(job.lease is None and self._may_have_memory(job) for job in self._for_memory)

    @contextmanager
    def entered(self, job: Job) -> Iterator[None]:
        """Let a job in, as `enter` does, for the length of a `with` block."""
        self.enter(job)
        try:
            yield
        finally:
            self.leave(job)

    def enter(self, job: Job) -> None:
        """Let a job into the first line, until it is to `leave`.

        Raises:
            Problem: SERVER_BUSY or QUOTA_EXCEEDED with a hint, SHUTTING_DOWN, TENSOR_TOO_LARGE,
                DEVICE_LEASE_EXPIRED, or LEASE_IN_USE.
        """
        self._check_room(job)
        if job.lease is not None:
            job.lease.begin_use()
        self._handlers += 1
        self._empty.clear()
        self._inside[job] = None
        self._tenants.use_of(job.tenant).inside_count += 1
        job.holders = 1
        job.expected_s = self._estimates.expected_s(*_kind(job)) * _run_count(job)
        try:
            if not self._for_memory and self._may_have_memory(job) and self._take_memory(job):
                self._hold_memory(job)
            else:
                self._for_memory.append(job)
                self._advance()
        except BaseException:
            self.leave(job)
            raise

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs inside: those that run, then the others, as they are to be served."""
        self._measure()
        waiting = (*self._for_worker, *self._for_memory)
        rest = [job for job in self._inside if not _waits(job)]
        rest.sort(key=lambda job: job.state is not JobState.RUNNING)
        return (*rest, *waiting)

    def waits_for_device(self, job: Job) -> bool:
        """Return whether a job that has no memory yet is to get none before a device is free."""
        return job.state is JobState.WAITING_FOR_MEMORY and not self._for_worker.may_run(job)

    def cancel(self, job: Job) -> bool:
        """End a job with the problem CANCELLED; what a worker runs, runs on, for nobody.

        Returns:
            Whether a worker runs it.
        """
        running = job.state is JobState.RUNNING
        if not running:
            self._unline(job)
            self._exit(job)
        if job.outcome is None:
            job.outcome = ended_by_somebody()
            job.changed.set()
            job.sent_away.set()
        self._advance()
        return running

    def _check_room(self, job: Job) -> None:
        if self._draining:
            raise shutting_down()
        own = self._tenants.of(job.tenant)
        if own.tensor_bytes is not None:
            _check_tensors(job, own.tensor_bytes)
        if job.device_lease:
            self.device_leases.check(job.device_lease, job.tenant)
        inside_count = self._tenants.use_of(job.tenant).inside_count
        queue_count = self._limits.queue_count if own.queue_count is None else own.queue_count
        allowed = self._slot_count + queue_count
        if inside_count >= allowed:
            raise Problem(
                Reason.SERVER_BUSY if own.queue_count is None else Reason.QUOTA_EXCEEDED,
                f"{inside_count} requests of tenant {job.tenant} are inside, {self._slot_count} "
                f"can run and {queue_count} can wait; try again later",
                argument="queue_count",
                given=str(inside_count),
                allowed=str(allowed),
                retry_after_s=self._hint_s(inside_count),
            )
        # last: what is refused for another reason does not count
        self._tenants.count(job.tenant)

    async def body_complete(self, job: Job) -> None:
        """Put a job whose inputs are all in its arena into the second line.

        Raises:
            Problem: REQUEST_POISONED.
        """
        if job.outcome is not None:  # sent away while it was uploading
            return
        if self._poison.suspects(job.call_digest):
            fingerprint = await fingerprint_of(job)
            if job.sent_away.is_set():  # it has ended meanwhile
                return
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
        job.awaited = state if progress is None else JobState.WAITING_FOR_MEMORY
        while job.state < state and job.outcome is None:
            job.changed.clear()
            if progress is not None:
                if _waits(job):
                    if job.told_position < 0:  # else whoever woke it has just measured
                        self._measure()
                    self._tell_soon()
                    job.told_position = job.position
                await progress(job)
            if job.changed.is_set():
                continue
            if job.state is JobState.RUNNING:  # limited by its worker
                await job.changed.wait()
                continue
            waited_s = job.waited_s + time.monotonic() - job.since_s
            rest_s = self._limits.queue_ms / 1000 - waited_s
            if rest_s <= 0:
                raise queued_too_long(self._limits.queue_ms)
            # meanwhile it may have left its line, so the next look says whether that was too long
            with suppress(asyncio.TimeoutError):
                async with timeout(rest_s):
                    await job.changed.wait()
        if isinstance(job.outcome, Problem):
            raise job.outcome

    def leave(self, job: Job) -> None:
        """Forget a job that entered, at whatever point it is: its handler is done, or cancelled.

        What a worker still runs, runs on; its memory goes back when it is done.
        """
        stood_in_line = self._unline(job)
        if job.state is not JobState.RUNNING:
            self._exit(job)
        self._drop(job)
        if stood_in_line:  # somebody may have waited behind it
            self._advance()
        self._handlers -= 1
        if self._handlers == 0:
            self._empty.set()

    def _unline(self, job: Job) -> bool:
        """Take a job out of the line that it stands in; return whether it stood in one."""
        if job.state is JobState.WAITING_FOR_MEMORY:
            return self._for_memory.discard(job)
        if job.state is JobState.WAITING_FOR_WORKER:
            return self._for_worker.discard(job)
        return False

    def _exit(self, job: Job) -> None:
        """Count a job as inside no longer; a second time is harmless."""
        if job in self._inside:
            del self._inside[job]
            self._tenants.use_of(job.tenant).inside_count -= 1

    def _hold_memory(self, job: Job) -> None:
        """Count the memory that a job has got, and let its inputs come."""
        use = self._tenants.use_of(job.tenant)
        use.flight_count += 1
        use.flight_bytes += job.placement.size_bytes
        job.move(JobState.UPLOADING)

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
        self.device_leases.drain()
        for job in [job for job in self._inside if job.state is not JobState.RUNNING]:
            self._unline(job)
            self._send_away(job, shutting_down())

    async def wait_empty(self, limit_s: float) -> None:
        """Wait until every handler has left, but no longer than *limit_s* seconds."""
        with suppress(asyncio.TimeoutError):
            async with timeout(limit_s):
                await self._empty.wait()

    def workers_changed(self) -> None:
        """Look again: a worker got ready, died, or finished a job."""
        self._advance()

    def _advance(self) -> None:
        self.device_leases.advance()
        if self._for_memory:
            self._give_memory()
        while self._for_worker:
            while (found := self._for_worker.take()) is not None:
                self._launch(*found)
            hopeless = list(self._for_worker.take_hopeless())
            if not hopeless:
                return
            for job, problem in hopeless:
                self._send_away(job, problem)

    def _give_memory(self) -> None:
        """Give memory to those whose turn it is; nobody passes one who waits for enough of it."""
        short = False
        for job in list(self._for_memory):
            if (short and job.lease is None) or not self._may_have_memory(job):
                continue
            if not self._take_memory(job):
                short = True
                continue
            self._for_memory.take(job)
            self._for_memory.settle(job, job.placement.size_bytes)
            self._hold_memory(job)

    def _may_have_memory(self, job: Job) -> bool:
        """Return whether a job may have memory; one that may not holds up nobody else.

        Its tenant may have as much as it may, or the devices be others' for a while: then it would
        hold memory for nothing.
        """
        return self._for_worker.may_run(job) and self._tenants.may_hold(
            job.tenant, job.placement.size_bytes
        )

    def _weight_of(self, job: Job) -> float:
        return self._tenants.weight_of(job.tenant)

    def _take_memory(self, job: Job) -> bool:
        """Give a job memory, if there is some; one whose client has leased memory has it already.

        Returns:
            Whether it has memory.
        """
        if job.lease is None:
            job.arena = self._pool.lease(job.placement.size_bytes)
        return job.arena is not None

    def _measure(self) -> None:
        """Find out where those who wait are in their lines, and how long they will be there."""
        running_s, now_s = 0.0, time.monotonic()
        for job in self._inside:
            if job.state is JobState.RUNNING:
                had_s = now_s - job.since_s
                # one that takes longer than was expected: who knows how much longer
                running_s += max(job.expected_s - had_s, had_s * OVERDUE)
        for line in (self._for_worker, self._for_memory):
            for position, job in enumerate(line):
                job.position = position
                job.expected_wait_s = running_s / max(1, self._slot_count)
                running_s += job.expected_s

    def _tell_soon(self) -> None:
        """Wake those who wait when their places have changed, as long as anybody waits."""
        if self._teller is None:
            loop = asyncio.get_running_loop()
            self._teller = loop.call_later(TELL_PERIOD_S, self._tell)

    def _tell(self) -> None:
        self._teller = None
        if not self._for_memory and not self._for_worker:
            return
        self._measure()
        self._tell_count = (self._tell_count + 1) % TELL_COUNT
        for job in (*self._for_worker, *self._for_memory):
            told = job.told_position >= 0  # the others wait for their turn alone
            if told and (job.position != job.told_position or not self._tell_count):
                job.changed.set()
        self._tell_soon()

    def _send_away(self, job: Job, problem: Problem) -> None:
        """End a job that does not run."""
        self._exit(job)
        job.outcome = problem
        job.changed.set()
        job.sent_away.set()

    def _launch(self, job: Job, worker: Worker) -> None:
        assert job.arena is not None  # noqa: S101 - it is uploaded
        if job.is_over():
            # its handler is about to learn it, and leaves
            self._exit(job)
            self._for_worker.settle(job, 0.0)
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
        wanted = job.holders > 1 and job.outcome is None
        if isinstance(outcome, Again) and not self._draining and wanted:
            # back to the head of the line, as if never launched
            if outcome is Again.SUSPECT:
                job.alone = True
                job.suspected_on.add(job.device)
            job.holders -= 1
            job.move(JobState.WAITING_FOR_WORKER)
            self._for_worker.put_back(job)
            return
        seconds = time.monotonic() - job.since_s
        self._for_worker.settle(job, seconds)
        if isinstance(outcome, RunReply):
            self._estimates.learn(*_kind(job), seconds / _run_count(job))
        for observe in self.observers:
            observe(job, seconds)
        if isinstance(outcome, Problem) and job.backend_info is not None:
            add_origin(outcome, job.backend_info, job.checked.call.operator.name)
        if isinstance(outcome, Problem) and outcome.reason is Reason.DEVICE_FAULT:
            self._remember(job, outcome)
        else:
            self._settle(job, shutting_down() if isinstance(outcome, Again) else outcome)

    def _settle(self, job: Job, outcome: RunReply | Problem) -> None:
        self._exit(job)
        if job.outcome is None:  # nobody has ended it meanwhile
            job.outcome = outcome
        job.move(JobState.DONE)
        self._drop(job)
        self._advance()  # its worker has room

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
        if job.holders or job.arena is None:
            return
        arena, job.arena = job.arena, None
        use = self._tenants.use_of(job.tenant)
        use.flight_count -= 1
        use.flight_bytes -= job.placement.size_bytes
        if job.lease is None:
            self._pool.release(arena)
        else:
            job.lease.end_use()
        # in this order: who waits takes the memory over as it is
        if self._for_memory:
            self._give_memory()
        self._pool.shrink()

    def _hint_s(self, inside_count: int) -> float:
        expected_s = self._estimates.any_s * inside_count / max(1, self._slot_count)
        return min(MAX_HINT_S, max(MIN_HINT_S, expected_s / 2))


def _waits(job: Job) -> bool:
    return job.outcome is None and job.state in (
        JobState.WAITING_FOR_MEMORY,
        JobState.WAITING_FOR_WORKER,
    )


def _memory_bytes(job: Job) -> float:
    return job.placement.size_bytes


def _expected_s(job: Job) -> float:
    return job.expected_s


def _kind(job: Job) -> tuple[str, str, int]:
    """Return what runs of about the same length have in common."""
    size_bytes = job.checked.input_bytes + job.checked.output_bytes
    return job.checked.call.operator.name, job.package.name, size_bytes


def _run_count(job: Job) -> int:
    """Return how often the operator runs for a job."""
    options = job.checked.call.options
    return max(1, options.repeat + options.warmup)


def _check_tensors(job: Job, most_bytes: int) -> None:
    """Check each tensor against what its tenant may have.

    Raises:
        Problem: TENSOR_TOO_LARGE.
    """
    for name, spec in {**job.checked.call.inputs, **job.checked.outputs}.items():
        if spec.data_bytes > most_bytes:
            problem = too_large(name, spec.data_bytes, most_bytes)
            problem.message += f" for tenant {job.tenant}"
            raise problem
