"""The supervisor of one device: starts its worker, hands it jobs, replaces it when it dies.

It lives in the front's event loop. One task leads a worker's life, one process after the other. A
process serves one operator package and never loads another: a request for another package, changed
files, or age end it between two jobs, and the next one takes over. A worker that dies takes the
jobs with it that it ran, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import structlog

from opferry.core.execution import WorkerInfo
from opferry.core.problems import Problem
from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.timeouts import timeout
from opferry_server.workers.arena import Arena
from opferry_server.workers.faults import Fault
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.process import WorkerProcess
from opferry_server.workers.running import (
    Finish,
    RunningJobs,
    WorkerStartError,
    died,
    overdue,
)
from opferry_server.workers.starts import FIRST_RESTART_S, Bounds, StartRecord
from opferry_server.workers.tenure import Tenure

log = structlog.get_logger()


class Worker:
    """The worker of one device, over its restarts."""

    def __init__(
        self,
        backend: str,
        packages: Mapping[str, BackendSettings],
        bounds: Bounds,
        on_change: Callable[[], None],
        *,
        role: str = "worker",
        on_fault: Callable[[Fault], None] = lambda fault: None,
    ) -> None:
        """Describe a worker; `start` starts it.

        Args:
            backend: the backend's name or import path.
            packages: what the backend is told to serve each package, the default first.
            bounds: how long things may take.
            on_change: called when the worker may take a job, or no longer can.
            role: the first part of its name.
            on_fault: told of each fault of the device, and of each process that dies.
        """
        self._default = next(iter(packages))
        self._device = packages[self._default].device
        self.name = f"{role}-{self._device}"
        self.info: BackendInfo | None = None
        self.package = self._default
        """The package that it serves, or is about to."""
        self.operators: dict[str, tuple[str, ...]] = {}
        """By package that it has served, the operators that this had."""
        self.ready_since_s = 0.0
        """Since when the process is ready, on the monotonic clock."""
        self.slots = 1
        """How many jobs it takes at a time when it is ready."""
        self._device_name = f"{backend}:{self._device}"
        self._packages = packages
        self._backend = backend
        self._bounds = bounds
        self._on_change = on_change
        self._on_fault = on_fault
        self._process: WorkerProcess | None = None
        self._jobs = RunningJobs()
        self._tenure = Tenure(bounds)
        self._starts = {name: StartRecord() for name in packages}
        self._restart_count = 0
        self._retiring = ""
        self._overdue = False
        self._fault: Problem | None = None
        self._broken = False
        self._alone = False
        self._pausing = False
        self._wake = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    @property
    def free_slots(self) -> int:
        """How many more jobs it takes now."""
        if self.info is None or self._alone or self._retiring:
            return 0
        return self.info.concurrency - len(self._jobs)

    @property
    def running_count(self) -> int:
        """How many jobs it runs."""
        return len(self._jobs)

    @property
    def ready(self) -> bool:
        """Whether its process is ready."""
        return self.info is not None

    @property
    def started(self) -> bool:
        """Whether `start` has succeeded: from then on it is kept alive."""
        return self._life is not None

    @property
    def has_room(self) -> bool:
        """Whether it has room for another job, now or as soon as it is ready."""
        return not self._alone and len(self._jobs) < self.slots

    @property
    def idle(self) -> bool:
        """Whether it is ready and runs nothing."""
        return self.info is not None and not self._jobs and not self._retiring

    @property
    def switchable(self) -> bool:
        """Whether it would serve another package as soon as it runs nothing."""
        ready = self.info is not None and not self._retiring
        return not self._broken and (ready or self._pausing)

    @property
    def failing(self) -> bool:
        """Whether nobody knows when it will be back."""
        return self._broken or self._starts[self._default].failed_count > 0

    @property
    def quarantined(self) -> bool:
        """Whether its device is out of service, for now or for good."""
        return self._broken or self._starts[self._default].quarantined

    @property
    def start_s(self) -> float:
        """How long a start takes, as far as is known, in seconds."""
        return max(record.last_s for record in self._starts.values())

    @property
    def memory_bytes(self) -> int:
        """The memory of its process's own, without arenas, looked up now and then."""
        return 0 if self._process is None else self._process.memory_bytes()

    def may_serve(self, package: str) -> bool:
        """Return whether it serves a package, or might if it were asked to."""
        return not self._broken and self._starts[package].may_start()

    def trouble(self, package: str) -> str:
        """Return why it does not serve a package, as far as is known."""
        if self._broken:
            told = self._starts[self.package].trouble
            return told if self._fault is None else self._fault.message
        return self._starts[package].trouble

    def describe(self) -> WorkerInfo:
        """Return what server information says of it."""
        troubles = {name: self.trouble(name) for name in self._packages}
        if self.info is not None:
            troubles |= {name: f"not served: {text}" for name, text in self.info.refused.items()}
        return WorkerInfo(
            name=self.name,
            device=self._device_name,
            ready=self.info is not None,
            running_count=len(self._jobs),
            restart_count=self._restart_count,
            quarantined=self.quarantined,
            trouble="; ".join(f"{name}: {text}" for name, text in troubles.items() if text),
            operator_package=self.package,
        )

    async def start(self) -> None:
        """Start the first process and wait until it is ready; from then on it is kept alive.

        Raises:
            WorkerStartError: if it does not get ready; the text says why.
        """
        await self._start_process()
        self._life = asyncio.create_task(self._live())

    def run(self, request: RunRequest, arena: Arena, finish: Finish, *, alone: bool) -> None:
        """Hand a job to the worker, which has a free slot; it takes no other beside one *alone*."""
        assert self._process is not None  # noqa: S101 - free_slots was positive
        timer = asyncio.get_running_loop().call_later(self._bounds.run_s, self._end_overdue)
        self._jobs.add(request, finish, timer)
        self._alone = alone
        self._tenure.count_job()
        self._process.send(request, arena)

    def forget(self, arena: Arena) -> None:
        """Tell the worker that an arena is gone."""
        if self._process is not None:
            self._process.forget(arena)

    def switch(self, package: str) -> None:
        """Serve another package as soon as nothing runs; for a worker that is `switchable`."""
        log.info("package changes", worker=self.name, before=self.package, package=package)
        self.package = package
        self._retire(f"operator package {package} is asked for")
        self._wake.set()

    def refresh(self) -> None:
        """Replace the process as soon as nothing runs, if its package's files have changed."""
        if self.info is not None and not self._retiring:
            self._retire(self._tenure.changed_files())

    async def close(self) -> None:
        """End the process and wait for it. What it still runs is lost."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            if (self.info is not None or self._retiring) and not self._jobs:
                await process.end()
            await process.bury()
            process.close()

    async def _start_process(self) -> None:
        started_s = time.monotonic()
        settings = self._packages[self.package]
        self._tenure.prepare(settings)
        process = await WorkerProcess.spawn(self._backend, settings, self._on_reply)
        self._process = process
        try:
            self.info = await process.wait_ready(self._bounds.start_s)
        except WorkerStartError:
            await process.bury()
            process.close()
            self._process = None
            raise
        self._tenure.begin(self.info)
        self.operators[self.package] = self.info.operators
        self._device_name = self.info.device
        self.ready_since_s = time.monotonic()
        self.slots = self.info.concurrency
        self._starts[self.package].succeeded(time.monotonic() - started_s)
        log.info(
            "worker ready",
            worker=self.name,
            device=self.info.device,
            soc_name=self.info.soc_name,
            operator_package=self.package,
            known_answer=self.info.operator_package.known_answer,
            library_file=self.info.operator_package.library_file,
            operators=list(self.info.operators),
            refused=dict(self.info.refused),
            restart_count=self._restart_count,
            versions=dict(self.info.versions),
        )
        self._on_change()

    async def _live(self) -> None:
        """Wait for the end of each process and start the next, whatever goes wrong."""
        pause_s = 0.0
        while not self._broken:
            try:
                if self._process is None:
                    await self._restart(pause_s)
                pause_s = FIRST_RESTART_S
                if self._process is not None:
                    pause_s = await self._outlive(self._process)
            except Exception:
                log.exception("defect", worker=self.name)
                await asyncio.sleep(FIRST_RESTART_S)
        log.error("device out of service", worker=self.name, device=self._device_name)
        self._on_change()

    async def _outlive(self, process: WorkerProcess) -> float:
        """Wait for the end of a process; return the pause before the next in seconds."""
        await asyncio.wait((process.ended,))
        self.info = None
        planned, self._retiring = "" if self._jobs else self._retiring, ""
        how = await process.bury()
        if planned:
            log.info("worker ended", worker=self.name, why=planned)
        else:
            log.error("worker died", worker=self.name, how=how, jobs_count=len(self._jobs))
            if self._fault is None:  # else it has told what follows from its fault
                self._tell_fault("RUN_DEADLINE" if self._overdue else how)
        self._process = None
        try:
            self._settle_jobs(process, how)
        finally:
            process.close()
        return 0.0 if planned else FIRST_RESTART_S

    async def _restart(self, pause_s: float) -> None:
        """Start the next process, after a pause which the wish for another package ends."""
        while not self._broken:
            await self._pause(pause_s)
            self._restart_count += 1
            record = self._starts[self.package]
            try:
                await self._start_process()
            except WorkerStartError as err:
                record.failed(err)
                self._broken = err.device_broken
                log.error(
                    "worker did not start",
                    worker=self.name,
                    operator_package=self.package,
                    error=str(err),
                )
                pause_s = record.pause_s
                if record.quarantined and self.package != self._default:
                    # back to work; the package is tried again when somebody asks for it
                    self.package, pause_s = self._default, 0.0
                continue
            return

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        self._pausing = True
        self._on_change()
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(seconds):
                await self._wake.wait()
        self._pausing = False

    def _retire(self, why: str) -> None:
        """Give the process no more jobs, and end it when it has none; not if there is no reason."""
        if why and self.info is not None and not self._retiring:
            self._retiring = why
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._retiring and not self._jobs and self._process is not None:
            self.info = None
            self._process.begin_end()

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
            self._broken = self._broken or reply.device_broken
            log.error(
                "device fault",
                worker=self.name,
                device=self._device_name,
                operator_package=self.package,
                reason=problem.reason.value,
                acl_error=problem.acl_error,
                stage=problem.stage,
                text=problem.message,
            )
            self._tell_fault(problem.reason.value, problem.acl_error, problem.stage)
            return
        finish = self._jobs.remove(reply.job_id)
        self._alone = False
        if self._process is not None:
            self._retire(self._tenure.old_age(self._process))
        if reply.probes_device:
            self._retire("the device is probed, by another process's known-answer case")
        self._end_if_idle()
        finish(reply if problem is None else problem)

    def _tell_fault(self, how: str, acl_error: int | None = None, stage: str | None = None) -> None:
        code = "" if acl_error is None else str(acl_error)
        fault = Fault(self.name, self._device_name, self.package, how, code, stage or "")
        self._on_fault(fault)

    def _settle_jobs(self, process: WorkerProcess, how: str) -> None:
        lost = overdue(self._bounds.run_s) if self._overdue else died(self.name, how)
        problem = lost if self._fault is None else self._fault
        self._overdue, self._alone = False, False
        if not self._broken:
            self._fault = None
        self._jobs.settle(process.begun, problem)
