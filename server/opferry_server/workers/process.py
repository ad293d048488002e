"""One worker process, from its start to its end: its socket, its messages, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
        handle: int | None,
    ) -> None:
        """Listen to a process that `spawn` started; *handle* is its pidfd, where there is one."""
        loop = asyncio.get_running_loop()
        self.begun = begun
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the process has ended, or closed its end of the socket. What it has forked may
        hold that open for ever."""
        self._ready: asyncio.Future[BackendInfo] = loop.create_future()
        self._process = process
        self._control = control
        self._known_arenas: set[int] = set()
        self._on_reply = on_reply
        self._listening = True
        self._gone = asyncio.Event()
        self._end_timer: asyncio.TimerHandle | None = None
        self._memory_bytes = 0
        self._memory_known_s = 0.0
        self._to_forget: list[int] = []
        loop.add_reader(control.fileno(), self._on_readable)
        self._handle = handle
        if handle is not None:
            loop.add_reader(handle, self._on_exit)

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
                handle = _pidfd(process)
            except OSError as err:
                raise WorkerStartError(f"the worker cannot be started: {err}") from err
            held.pop_all()
        return cls(process, ours, begun, on_reply, handle)

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
        # A dead process's socket refuses; the reader is about to find out.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if arena.id in self._known_arenas:
                self._control.send(request.encode())
            else:
                self._known_arenas.add(arena.id)
                socket.send_fds(self._control, [request.encode()], [arena.fd])

    def forget(self, arena: Arena) -> None:
        """Tell the process that an arena is gone."""
        if arena.id in self._known_arenas and self._listening:
            self._known_arenas.discard(arena.id)
            self._to_forget.append(arena.id)
            self._send_forgets()

    def _send_forgets(self) -> None:
        """Tell what is to be forgotten; while the process is too busy to hear, it waits."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            while self._to_forget:
                self._control.send(messages.encode_forget(self._to_forget[0]))
                self._to_forget.pop(0)

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
        if self._handle is None:
            await asyncio.to_thread(self._process.wait)
        else:
            await self._gone.wait()
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
        if self._handle is not None:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)

    def _on_readable(self) -> None:
        message = self._receive()
        if message:
            self._hear(message)
        elif message is not None:
            self._end_listening()

    def _hear(self, message: bytes) -> None:
        kind, fields = messages.decode(message)
        if kind == "done":
            self._send_forgets()
            self._on_reply(RunReply.decode(fields))
        elif kind == "ready":
            self._ready.set_result(messages.decode_ready(fields))
        elif kind == "failed":
            error = WorkerStartError(fields["text"], device_broken=fields["device_broken"])
            self._ready.set_exception(error)

    def _receive(self) -> bytes | None:
        """Return the next message, b"" at the end, None if there is none yet."""
        while True:
            try:
                return self._control.recv(messages.MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # it ended with messages unread; what it had said before still follows
                continue

    def _on_exit(self) -> None:
        """Hear the last words of a process that has ended."""
        asyncio.get_running_loop().remove_reader(self._handle or 0)
        self._gone.set()
        while self._listening and (message := self._receive()):
            self._hear(message)
        self._end_listening()

    def _end_listening(self) -> None:
        self._stop_listening()
        if not self.ended.done():  # a cancelled waiter has cancelled it
            self.ended.set_result(None)

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            asyncio.get_running_loop().remove_reader(self._control.fileno())


def _popen(command: list[str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _pidfd(process: subprocess.Popen[bytes]) -> int | None:
    """Return a descriptor that tells of the process's end, None where the system has none."""
    try:
        return os.pidfd_open(process.pid)
    except OSError as err:
        if err.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a strict container
            return None
        process.kill()
        raise


def _anonymous_bytes(pid: int) -> int:
    """Return a process's anonymous resident memory, 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
