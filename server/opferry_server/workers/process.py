"""One worker process, from its start to its end: its socket, its messages, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.timeouts import timeout
from opferry_server.workers import messages
from opferry_server.workers.arena import Arena
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.messages import RunReply, RunRequest
from opferry_server.workers.running import WorkerStartError, describe_exit

END_S = 10.0
"""How long a worker may take to release its device, in seconds."""

MEMORY_PERIOD_S = 1.0
"""How often a worker's memory is looked at, in seconds."""


class WorkerProcess:
    """A process that was started, with all that is its own: its successor inherits nothing."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        begun: BegunJobs,
        on_reply: Callable[[RunReply], None],
    ) -> None:
        """Listen to a process that `spawn` started."""
        loop = asyncio.get_running_loop()
        self.begun = begun
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the process has closed its end of the socket."""
        self._ready: asyncio.Future[BackendInfo] = loop.create_future()
        self._process = process
        self._control = control
        self._known_arenas: set[int] = set()
        self._on_reply = on_reply
        self._listening = True
        self._end_timer: asyncio.TimerHandle | None = None
        self._memory_bytes = 0
        self._memory_known_s = 0.0
        loop.add_reader(control.fileno(), self._on_readable)

    @classmethod
    async def spawn(
        cls, backend: str, settings: BackendSettings, on_reply: Callable[[RunReply], None]
    ) -> WorkerProcess:
        """Start a process.

        Args:
            backend: the backend's name or import path.
            settings: what the backend is told.
            on_reply: called with each reply.

        Raises:
            WorkerStartError: if the system does not let it be started.
        """
        with contextlib.ExitStack() as held:
            try:
                begun = BegunJobs.make()
                held.callback(begun.close)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                held.enter_context(ours)
                ours.setblocking(False)
                with theirs:
                    command = [
                        *(sys.executable, "-m", "opferry_server.workers"),
                        *("--socket-fd", str(theirs.fileno())),
                        *("--begun-fd", str(begun.fd)),
                        *("--backend", backend),
                        *("--settings", messages.encode_settings(settings)),
                    ]
                    fds = (theirs.fileno(), begun.fd)
                    process = await asyncio.to_thread(_popen, command, fds)
            except OSError as err:
                raise WorkerStartError(f"the worker cannot be started: {err}") from err
            held.pop_all()
        return cls(process, ours, begun, on_reply)

    async def wait_ready(self, limit_s: float) -> BackendInfo:
        """Return what the backend says of itself once it is open.

        Raises:
            WorkerStartError: if it cannot be opened, the process ends, or the time is over.
        """
        try:
            async with timeout(limit_s):
                await asyncio.wait((self._ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.TimeoutError:
            raise WorkerStartError(f"the worker was not ready within {limit_s:g} s") from None
        if self._ready.done():
            return self._ready.result()
        raise WorkerStartError(f"the worker {await self.bury()} before it was ready")

    def send(self, request: RunRequest, arena: Arena) -> None:
        """Send a request, with the arena's descriptor if it has not seen it yet."""
        fds = [] if arena.id in self._known_arenas else [arena.fd]
        self._known_arenas.add(arena.id)
        # A dead process's socket refuses; the reader is about to find out.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [request.encode()], fds)

    def forget(self, arena: Arena) -> None:
        """Tell the process that an arena is gone."""
        if arena.id in self._known_arenas and self._listening:
            self._known_arenas.discard(arena.id)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                self._control.send(messages.encode_forget(arena.id))

    def kill(self) -> None:
        """End the process at once; the reader does the rest."""
        self._process.kill()

    def begin_end(self) -> None:
        """Let the process, which runs nothing, release its device and end; the reader notices.

        One that does not end in `END_S` is killed.
        """
        if self._end_timer is not None:
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            self._control.send(messages.encode_end())
        self._end_timer = asyncio.get_running_loop().call_later(END_S, self.kill)

    async def end(self) -> None:
        """Let the process release its device and wait for its end."""
        self.begin_end()
        await asyncio.wait((self.ended,))

    def memory_bytes(self) -> int:
        """Return the process's own memory, without arenas; looked up now and then."""
        now_s = time.monotonic()
        if now_s >= self._memory_known_s + MEMORY_PERIOD_S:
            self._memory_known_s = now_s
            self._memory_bytes = _anonymous_bytes(self._process.pid)
        return self._memory_bytes

    async def bury(self) -> str:
        """Make sure that the process is gone and return in words how it ended."""
        # it may have closed its socket and live on
        self._process.kill()
        await _end_of(self._process)
        return describe_exit(self._process.wait())

    def close(self) -> None:
        """Let go of what was kept for it; a second time is harmless."""
        if self._control.fileno() < 0:
            return
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._stop_listening()
        self._control.close()
        self.begun.close()

    def _on_readable(self) -> None:
        try:
            message = self._control.recv(messages.MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if not message:
            self._stop_listening()
            if not self.ended.done():  # a cancelled waiter has cancelled it
                self.ended.set_result(None)
            return
        kind, fields = messages.decode(message)
        if kind == "done":
            self._on_reply(RunReply.decode(fields))
        elif kind == "ready":
            self._ready.set_result(messages.decode_ready(fields))
        elif kind == "failed":
            self._ready.set_exception(WorkerStartError(fields["text"]))

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            asyncio.get_running_loop().remove_reader(self._control.fileno())


def _popen(command: list[str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=sys.stderr)


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, without a thread: one that hangs in a driver may not end."""
    if process.returncode is not None:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:  # an old kernel, or a container that does not let it through
        await asyncio.to_thread(process.wait)
        return
    try:
        loop.add_reader(handle, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _anonymous_bytes(pid: int) -> int:
    """Return a process's anonymous resident memory, 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
