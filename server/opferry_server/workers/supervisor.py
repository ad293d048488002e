"""The supervisor: starts workers, hands them jobs, replaces those that die.

It lives in the front's event loop. A worker is a child process at the other end of a socket pair;
it counts as ready when its backend has said so. A worker that dies takes the jobs with it that it
ran, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from opferry.core.execution import WorkerInfo
from opferry.core.problems import Problem, Reason
from opferry_server.backends.base import BackendInfo
from opferry_server.workers import messages
from opferry_server.workers.arena import Arena
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.messages import RunReply, RunRequest

log = structlog.get_logger()

FIRST_RESTART_S = 0.1
"""The pause before a worker that died while it was ready is started again."""

LAST_RESTART_S = 30.0
"""The longest pause, after many starts in a row that failed; it doubles in between."""


Finish = Callable[[RunReply | Problem | None], None]
"""What is called with the outcome of a job; None: the worker died before it began."""


class WorkerStartError(Exception):
    """A worker did not get ready; the text is the backend's own."""


@dataclass
class RunningJob:
    """A job that a worker has."""

    request: RunRequest
    """What it runs."""
    finish: Finish
    """Called exactly once with what came of it."""
    timer: asyncio.TimerHandle
    """Ends the worker when the job runs too long."""


class Worker:
    """One worker process, over its restarts."""

    def __init__(
        self, index: int, backend: str, run_ms: int, on_change: Callable[[], None]
    ) -> None:
        """Describe a worker; `start` starts it.

        Args:
            index: its number, and its device's.
            backend: the backend's name or import path.
            run_ms: a job that runs longer is ended together with the process.
            on_change: called when the worker may take a job, or no longer can.
        """
        self.name = f"worker-{index}"
        self.info: BackendInfo | None = None
        self._index = index
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
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def free_slots(self) -> int:
        """How many more jobs it takes now."""
        return 0 if self.info is None else self.info.concurrency - len(self._jobs)

    @property
    def failing(self) -> bool:
        """Whether its last start failed, so that nobody knows when it will be back."""
        return self._failed_starts > 0

    def describe(self) -> WorkerInfo:
        """Return what server information says of it."""
        return WorkerInfo(
            name=self.name,
            device=f"{self._backend}:{self._index}" if self.info is None else self.info.device,
            ready=self.info is not None,
            running_count=len(self._jobs),
            restart_count=self._restart_count,
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
            *("--device", str(self._index)),
        ]
        return subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), begun_fd),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )

    def run(self, request: RunRequest, arena: Arena, finish: Finish) -> None:
        """Hand a job to the worker; it has a free slot."""
        assert self._control is not None  # noqa: S101 - free_slots was positive
        fds = [] if arena.id in self._known_arenas else [arena.fd]
        timer = asyncio.get_running_loop().call_later(self._run_s, self._end_overdue)
        self._jobs[request.job_id] = RunningJob(request, finish, timer)
        self._known_arenas.add(arena.id)
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
            reply = RunReply.decode(fields)
            job = self._jobs.pop(reply.job_id)
            job.timer.cancel()
            problem = reply.problem
            job.finish(reply if problem is None else Problem.from_fields(problem))
        elif kind == "ready":
            self.info = messages.decode_ready(fields)
            self._failed_starts = 0
            self._settle_start(None)
        elif kind == "failed":
            self._settle_start(WorkerStartError(fields["text"]))
        self._on_change()

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
        jobs, overdue = list(self._jobs.values()), self._overdue
        self._jobs.clear()
        self._overdue = False
        log.error("worker died", worker=self.name, how=how, jobs_count=len(jobs))
        for job in jobs:
            job.timer.cancel()
            begun = self._begun is None or job.request.job_id in self._begun
            job.finish(self._lost(how, overdue) if begun else None)
        self._release_begun()
        pause_s = FIRST_RESTART_S
        while True:
            self._on_change()
            await asyncio.sleep(pause_s)
            self._restart_count += 1
            try:
                await self.start()
            except (WorkerStartError, OSError) as err:
                self._failed_starts += 1
                log.error("worker did not start", worker=self.name, error=str(err))
                pause_s = min(pause_s * 2, LAST_RESTART_S)
                continue
            log.info("worker ready", worker=self.name, restart_count=self._restart_count)
            return

    def _lost(self, how: str, overdue: bool) -> Problem:
        if overdue:
            return Problem(
                Reason.RUN_DEADLINE,
                f"the operator ran longer than the server's limit of {self._run_s:g} s; "
                "its worker was ended",
                argument="run_ms",
                allowed=f"{self._run_s * 1000:.0f}",
            )
        return Problem(
            Reason.DEVICE_FAULT,
            f"{self.name} {how} while it ran the request; the worker is being replaced",
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
