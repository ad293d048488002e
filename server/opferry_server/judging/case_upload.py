"""The data of a case that a client was asked for."""

from __future__ import annotations

import asyncio

from opferry import wire
from opferry.core.problems import Problem, Reason
from opferry.v1 import validation_pb2 as pb
from opferry_server.jobs import Job
from opferry_server.timeouts import timeout
from opferry_server.uploads import Upload


class CaseUpload:
    """The data of one case that are on their way."""

    def __init__(self, upload: Upload, idle_ms: int) -> None:
        """Receive by *upload*; a client may be still for *idle_ms* milliseconds."""
        self._upload = upload
        self._idle_ms = idle_ms
        self._moved = asyncio.Event()
        self._end: Problem | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return self._upload.is_complete

    def end(self, problem: Problem) -> None:
        """Expect nothing more: whoever waits for what is missing is told *problem*."""
        self._end = problem
        self._moved.set()

    def put(self, chunk: pb.CaseChunk) -> None:
        """Put a chunk in its place.

        Raises:
            Problem: STREAM_PROTOCOL.
        """
        data = memoryview(chunk.data)
        self._upload.write(wire.Chunk(chunk.tensor_index, chunk.offset_bytes, data))
        self._moved.set()

    async def complete(self, job: Job) -> None:
        """Wait until everything is there.

        Raises:
            Problem: STREAM_IDLE if nothing comes for too long; what ended the upload, or the job.
        """
        leaving = asyncio.ensure_future(self._end_with(job))
        try:
            while not self.is_complete:
                if self._end is not None:
                    raise self._end
                self._moved.clear()
                try:
                    async with timeout(self._idle_ms / 1000):
                        await self._moved.wait()
                except asyncio.TimeoutError:
                    raise Problem(
                        Reason.STREAM_IDLE,
                        f"the client sent nothing of the case's data for {self._idle_ms} ms",
                        argument="stream_idle_ms",
                        allowed=str(self._idle_ms),
                    ) from None
        finally:
            leaving.cancel()

    async def _end_with(self, job: Job) -> None:
        """End the upload of a job that the server sends away."""
        await job.sent_away.wait()
        if isinstance(job.outcome, Problem):
            self.end(job.outcome)
