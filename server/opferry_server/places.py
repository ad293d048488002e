"""The places in which the jobs of long streams are worked on: few, and streams take turns."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opferry.core.problems import Problem, Reason
from opferry_server.admission import Admission
from opferry_server.endings import queued_too_long
from opferry_server.jobs import Job
from opferry_server.timeouts import timeout


class Places:
    """A number of places, for one event loop.

    Each stream that waits gets one after the other, whatever number of cases it has waiting: one
    case is not kept from its verdict by somebody else's ten thousand.
    """

    def __init__(self, count: int) -> None:
        """Have *count* places, all free."""
        self._count = self._free = count
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def unused(self) -> bool:
        """Whether nobody has a place, or waits for one."""
        return self._free == self._count and not self._waiting

    async def acquire(self, stream: object) -> None:
        """Wait for a place.

        Args:
            stream: whose turn it is then; streams take turns.
        """
        if self.acquire_free():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(stream, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was given in the moment of the cancel
            raise

    def acquire_free(self) -> bool:
        """Take a place if there is one that nobody waits for; return whether there was."""
        free = bool(self._free) and not self._waiting
        self._free -= free
        return free

    def release(self) -> None:
        """Give a place back."""
        self._free += 1
        while self._free and self._waiting:
            stream, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[stream] = turns  # at the end: the others come first
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class Turns:
    """How the jobs of long streams, cases and many calls, enter the lines that all jobs pass."""

    def __init__(self, count: int, admission: Admission, queue_ms: int) -> None:
        """Let jobs in.

        Args:
            count: how many of a tenant at a time, over all its streams; what keeps one tenant's
                waiting, a limit of its own for instance, keeps nobody else's.
            admission: the lines.
            queue_ms: how long a job may wait for a place, and for the server not to be full.
        """
        self._count = count
        self._places: dict[str, Places] = {}
        self._admission = admission
        self._queue_ms = queue_ms

    @asynccontextmanager
    async def entered(self, job: Job, stream: object) -> AsyncIterator[None]:
        """Let a job in, in its turn among its account's; while the server is full, it waits.

        Args:
            job: the job.
            stream: its stream.

        Raises:
            Problem: SHUTTING_DOWN; QUEUE_DEADLINE, SERVER_BUSY or QUOTA_EXCEEDED after as long as a
                request may wait.
        """
        end_s = time.monotonic() + self._queue_ms / 1000
        places = self._places.get(job.account)
        if places is None:
            places = self._places[job.account] = Places(self._count)
        if not places.acquire_free():
            try:
                async with timeout(self._queue_ms / 1000):
                    await places.acquire(stream)
            except asyncio.TimeoutError:
                raise queued_too_long(self._queue_ms) from None
        try:
            await self._enter(job, end_s)
            try:
                yield
            finally:
                self._admission.leave(job)
        finally:
            self._give_back(job.account, places)

    async def _enter(self, job: Job, end_s: float) -> None:
        while True:
            try:
                self._admission.enter(job)
            except Problem as problem:
                pause_s = problem.retry_after_s or 0.0
                late = time.monotonic() + pause_s > end_s
                if problem.reason not in (Reason.SERVER_BUSY, Reason.QUOTA_EXCEEDED) or late:
                    raise
                await asyncio.sleep(pause_s)
            else:
                return

    def _give_back(self, account: str, places: Places) -> None:
        places.release()
        if places.unused and self._places.get(account) is places:
            del self._places[account]
