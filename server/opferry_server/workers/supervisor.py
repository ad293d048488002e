"""The supervisor: starts workers, hands them jobs, replaces those that die.

It lives in the front's event loop. A worker is a child process at the other end of a socket pair;
it counts as ready when its backend has said so. A worker that dies takes the jobs with it that it
ran, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable

import structlog

from opferry.core.execution import WorkerInfo
from opferry.core.problems import Problem
from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.workers import messages
from opferry_server.workers.arena import Arena
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.running import (
    Again,
    Finish,
    RunningJob,
    WorkerStartError,
    describe_exit,
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
    """One worker process, over its restarts."""

    def __init__(
        self, backend: str, settings: BackendSettings, run_ms: int, on_change: Callable[[], None]
    ) -> None:
        """Describe a worker; `start` starts it.

        Args:
            backend: the backend's name or import path.
            settings: what the backend is told; the device's number is the worker's too.
            run_ms: a job that runs longer is ended together with the process.
            on_change: called when the worker may take a job, or no longer can.
        """
        self.name = f"worker-{settings.device}"
        self.info: BackendInfo | None = None
        self._settings = settings
        self._backend = backend
        self._run_s = run_ms / 1000
        self._on_change = on_change
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._jobs: dict[int, RunningJob] = {}
        self._known_arenas: set[int] = set()
        self._started: asyncio.Future[None] | None = None
        self._restart_count = 0
        self._failed_starts = 0
        self._begun: BegunJobs | None = None
        self._overdue = False
        self._fault: Problem | None = None
        self._broken = False
        self._trouble = ""
        self._alone = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

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
        """Start the process and wait until it is ready.

        Raises:
            WorkerStartError: if it does not get ready; the text says why.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._started = loop.create_future()
        self._begun = BegunJobs.make()
        with theirs:
            self._process = await asyncio.to_thread(self._spawn, theirs, self._begun.fd)
        self._control = ours
        self._known_arenas.clear()
        loop.add_reader(ours.fileno(), self._on_readable)
        await self._started

    def _spawn(self, theirs: socket.socket, begun_fd: int) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "opferry_server.workers"),
            *("--socket-fd", str(theirs.fileno())),
            *("--begun-fd", str(begun_fd)),
            *("--backend", self._backend),
            *("--settings", messages.encode_settings(self._settings)),
        ]
        return subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), begun_fd),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )

    def run(self, request: RunRequest, arena: Arena, finish: Finish, *, alone: bool) -> None:
        """Hand a job to the worker, which has a free slot; it takes no other beside one *alone*."""
        assert self._control is not None  # noqa: S101 - free_slots was positive
        fds = [] if arena.id in self._known_arenas else [arena.fd]
        timer = asyncio.get_running_loop().call_later(self._run_s, self._end_overdue)
        self._jobs[request.job_id] = RunningJob(request, finish, timer)
        self._known_arenas.add(arena.id)
        self._alone = alone
        # A dead worker's socket refuses; the reader is about to find out, and fails the job.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [request.encode()], fds)

    def forget(self, arena: Arena) -> None:
        """Tell the worker that an arena is gone."""
        if arena.id in self._known_arenas and self._control is not None:
            self._known_arenas.discard(arena.id)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                self._control.send(messages.encode_forget(arena.id))

    def kill(self) -> None:
        """End the process at once; the reader does the rest."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the process and wait for it. What it still runs is lost."""
        self._closing = True
        self.kill()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        self._release_begun()

    def _release_begun(self) -> None:
        if self._begun is not None:
            self._begun.close()
            self._begun = None

    def _end_overdue(self) -> None:
        self._overdue = True
        self.kill()

    def _on_readable(self) -> None:
        assert self._control is not None  # noqa: S101 - it is registered
        try:
            message = self._control.recv(messages.MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if not message:
            self._on_death()
            return
        kind, fields = messages.decode(message)
        if kind == "done":
            self._on_reply(RunReply.decode(fields))
        elif kind == "ready":
            self.info = messages.decode_ready(fields)
            self._failed_starts = 0
            self._trouble = ""
            self._settle_start(None)
        elif kind == "failed":
            self._settle_start(WorkerStartError(fields["text"]))
        self._on_change()

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

    def _settle_start(self, error: WorkerStartError | None) -> None:
        if self._started is not None and not self._started.done():
            if error is None:
                self._started.set_result(None)
            else:
                self._started.set_exception(error)

    def _on_death(self) -> None:
        assert self._control is not None  # noqa: S101 - it was read from
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self.info = None
        if not self._closing:
            self._task = asyncio.ensure_future(self._bury_and_restart())

    async def _bury_and_restart(self) -> None:
        assert self._process is not None  # noqa: S101 - it has just died
        # It may have closed its socket and live on.
        self._process.kill()
        how = describe_exit(await asyncio.to_thread(self._process.wait))
        self._settle_start(WorkerStartError(f"the worker {how} before it was ready"))
        log.error("worker died", worker=self.name, how=how, jobs_count=len(self._jobs))
        self._settle_jobs(how)
        if self._broken:
            log.error("device out of service", worker=self.name, trouble=self._trouble)
            self._on_change()
            return
        pause_s = FIRST_RESTART_S
        while True:
            self._on_change()
            await asyncio.sleep(pause_s)
            self._restart_count += 1
            try:
                await self.start()
            except (WorkerStartError, OSError) as err:
                self._failed_starts += 1
                self._trouble = str(err)
                log.error("worker did not start", worker=self.name, error=str(err))
                pause_s = min(pause_s * 2, LAST_RESTART_S)
                continue
            log.info("worker ready", worker=self.name, restart_count=self._restart_count)
            return

    def _settle_jobs(self, how: str) -> None:
        """Tell each job of a dead process what becomes of it."""
        lost = overdue(self._run_s) if self._overdue else died(self.name, how)
        problem = lost if self._fault is None else self._fault
        jobs = list(self._jobs.values())
        begun = [job for job in jobs if self._begun is None or job.request.job_id in self._begun]
        self._jobs.clear()
        self._overdue, self._fault, self._alone = False, None, False
        self._release_begun()
        for job in jobs:
            job.timer.cancel()
            if job not in begun:
                job.finish(Again.NOT_BEGUN)
            elif len(begun) > 1:
                job.finish(Again.SUSPECT)
            else:
                job.finish(problem)
