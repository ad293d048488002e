"""The supervisor of one device: starts its worker, hands it jobs, replaces it when it dies.

It lives in the front's event loop. One task leads a worker's life, one process after the other; a
worker that dies takes the jobs with it that it ran, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from opferry.core.execution import WorkerInfo
from opferry.core.problems import Problem
from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.workers.arena import Arena
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.process import WorkerProcess
from opferry_server.workers.running import (
    Again,
    Finish,
    RunningJob,
    WorkerStartError,
    died,
    overdue,
)

log = structlog.get_logger()

FIRST_RESTART_S = 0.1
"""The pause before a worker that died while it was ready is started again."""

LAST_RESTART_S = 300.0
"""The longest pause, after many starts in a row that failed; it doubles in between."""

QUARANTINE_COUNT = 3
"""So many starts in a row that failed put a device into quarantine: it is still probed."""


class Worker:
    """The worker of one device, over its restarts."""

    def __init__(
        self,
        backend: str,
        settings: BackendSettings,
        *,
        run_ms: int,
        start_s: float,
        on_change: Callable[[], None],
    ) -> None:
        """Describe a worker; `start` starts it.

        Args:
            backend: the backend's name or import path.
            settings: what the backend is told; the device's number is the worker's too.
            run_ms: a job that runs longer is ended together with the process.
            start_s: how long each start may take, in seconds.
            on_change: called when the worker may take a job, or no longer can.
        """
        self.name = f"worker-{settings.device}"
        self.info: BackendInfo | None = None
        self._settings = settings
        self._backend = backend
        self._run_s = run_ms / 1000
        self._start_s = start_s
        self._on_change = on_change
        self._process: WorkerProcess | None = None
        self._jobs: dict[int, RunningJob] = {}
        self._restart_count = 0
        self._failed_starts = 0
        self._overdue = False
        self._fault: Problem | None = None
        self._broken = False
        self._trouble = ""
        self._alone = False
        self._life: asyncio.Task[None] | None = None

    @property
    def free_slots(self) -> int:
        """How many more jobs it takes now."""
        if self.info is None or self._alone:
            return 0
        return self.info.concurrency - len(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether it is ready and runs nothing."""
        return self.info is not None and not self._jobs

    @property
    def failing(self) -> bool:
        """Whether nobody knows when it will be back."""
        return self._failed_starts > 0 or self._broken

    @property
    def quarantined(self) -> bool:
        """Whether its device is out of service, for now or for good."""
        return self._broken or self._failed_starts >= QUARANTINE_COUNT

    def describe(self) -> WorkerInfo:
        """Return what server information says of it."""
        return WorkerInfo(
            name=self.name,
            device=f"{self._backend}:{self._settings.device}"
            if self.info is None
            else self.info.device,
            ready=self.info is not None,
            running_count=len(self._jobs),
            restart_count=self._restart_count,
            quarantined=self.quarantined,
            trouble=self._trouble,
        )

    async def start(self) -> None:
        """Start the first process and wait until it is ready; from then on it is kept alive.

        Raises:
            WorkerStartError: if it does not get ready; the text says why.
        """
        process = await self._start_process()
        self._life = asyncio.create_task(self._live(process))

    def run(self, request: RunRequest, arena: Arena, finish: Finish, *, alone: bool) -> None:
        """Hand a job to the worker, which has a free slot; it takes no other beside one *alone*."""
        assert self._process is not None  # noqa: S101 - free_slots was positive
        timer = asyncio.get_running_loop().call_later(self._run_s, self._end_overdue)
        self._jobs[request.job_id] = RunningJob(request, finish, timer)
        self._alone = alone
        self._process.send(request, arena)

    def forget(self, arena: Arena) -> None:
        """Tell the worker that an arena is gone."""
        if self._process is not None:
            self._process.forget(arena)

    async def close(self) -> None:
        """End the process and wait for it. What it still runs is lost."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        if self._process is not None:
            await self._process.bury()
            self._process.close()
            self._process = None

    async def _start_process(self) -> WorkerProcess:
        process = await WorkerProcess.spawn(self._backend, self._settings, self._on_reply)
        self._process = process
        try:
            self.info = await process.wait_ready(self._start_s)
        except WorkerStartError:
            await process.bury()
            process.close()
            self._process = None
            raise
        self._failed_starts = 0
        self._trouble = ""
        self._on_change()
        return process

    async def _live(self, process: WorkerProcess) -> None:
        """Wait for the end of each process and start the next."""
        while True:
            await process.ended
            self.info = None
            how = await process.bury()
            log.error("worker died", worker=self.name, how=how, jobs_count=len(self._jobs))
            self._settle_jobs(process, how)
            process.close()
            self._process = None
            if self._broken:
                log.error("device out of service", worker=self.name, trouble=self._trouble)
                self._on_change()
                return
            process = await self._restart()

    async def _restart(self) -> WorkerProcess:
        pause_s = FIRST_RESTART_S
        while True:
            self._on_change()
            await asyncio.sleep(pause_s)
            self._restart_count += 1
            try:
                process = await self._start_process()
            except WorkerStartError as err:
                self._failed_starts += 1
                self._trouble = str(err)
                log.error("worker did not start", worker=self.name, error=str(err))
                pause_s = min(pause_s * 2, LAST_RESTART_S)
                continue
            log.info("worker ready", worker=self.name, restart_count=self._restart_count)
            return process

    def _end_overdue(self) -> None:
        self._overdue = True
        if self._process is not None:
            self._process.kill()

    def _on_reply(self, reply: RunReply) -> None:
        problem = None if reply.problem is None else Problem.from_fields(reply.problem)
        if problem is not None and reply.ends_worker:
            # the end of the process follows, and settles who was at fault
            self.info = None
            self._fault = problem
            self._broken = reply.device_broken
            self._trouble = problem.message
            return
        job = self._jobs.pop(reply.job_id)
        job.timer.cancel()
        self._alone = False
        job.finish(reply if problem is None else problem)

    def _settle_jobs(self, process: WorkerProcess, how: str) -> None:
        """Tell each job of a dead process what becomes of it."""
        lost = overdue(self._run_s) if self._overdue else died(self.name, how)
        problem = lost if self._fault is None else self._fault
        jobs = list(self._jobs.values())
        begun = [job for job in jobs if job.request.job_id in process.begun]
        self._jobs.clear()
        self._overdue, self._fault, self._alone = False, None, False
        for job in jobs:
            job.timer.cancel()
            if job not in begun:
                job.finish(Again.NOT_BEGUN)
            elif len(begun) > 1:
                job.finish(Again.SUSPECT)
            else:
                job.finish(problem)
