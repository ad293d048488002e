"""One Execute stream: its frames in and out, and that the peer does not fall asleep."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, TypeVar

import grpc

from opferry import wire
from opferry.core.execution import Execution
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from opferry_server.jobs import Job, JobState
from opferry_server.requests import ClientGoneError
from opferry_server.timeouts import Timeout, move, timeout
from opferry_server.uploads import NoUpload, Upload

Context = grpc.aio.ServicerContext[Any, Any]

_T = TypeVar("_T")

_STATES = {
    JobState.WAITING_FOR_MEMORY: pb.ExecuteProgress.STATE_QUEUED,
    JobState.UPLOADING: pb.ExecuteProgress.STATE_UPLOADING,
    JobState.WAITING_FOR_WORKER: pb.ExecuteProgress.STATE_QUEUED,
    JobState.RUNNING: pb.ExecuteProgress.STATE_RUNNING,
}


class ExecuteStream:
    """The server's end of one Execute stream.

    Every method raises the Problem STREAM_IDLE when the peer neither sends nor reads for
    `stream_idle_ms`, and ClientGoneError when it is gone.
    """

    def __init__(self, context: Context, limits: LimitsConfig) -> None:
        """Speak on the stream of *context*, within *limits*."""
        self._context = context
        self._limits = limits

    async def header(self) -> pb.ExecuteHeader:
        """Receive the header.

        Raises:
            Problem: STREAM_PROTOCOL if anything else comes first, FIELD_UNKNOWN.
        """
        frame = await self._read()
        if frame is None:
            raise Problem(Reason.STREAM_PROTOCOL, "the stream ended before its header")
        request = wire.read_request_frame(frame)
        if isinstance(request, wire.Chunk):
            raise Problem(Reason.STREAM_PROTOCOL, "a chunk came before the header")
        wire.refuse_unknown_fields(request, deep=False)
        if not request.HasField("header"):
            raise Problem(Reason.STREAM_PROTOCOL, "the first frame is neither header nor chunk")
        return request.header

    async def report(self, job: Job) -> None:
        """Send how far a job is."""
        progress = pb.ExecuteProgress(
            state=_STATES[job.state],
            position=job.position,
            request_id=job.request_id,
            expected_wait_ms=round(job.expected_wait_s * 1000),
        )
        await self._write(pb.ExecuteResponse(progress=progress).SerializeToString())

    async def receive(self, job: Job) -> None:
        """Receive the body into the job's arena, until it is whole or the job is sent away.

        Raises:
            Problem: what `Upload` finds wrong.
        """
        upload = Upload(job) if job.lease is None else NoUpload()
        # one limit for all frames, moved on with each: tasks and timers of their own cost as much
        # as the frames
        idle_s = self._limits.stream_idle_ms / 1000
        try:
            async with timeout(idle_s) as limit:
                leaving = asyncio.ensure_future(_end_with(job, limit))
                try:
                    while (frame := await self._context.read()) is not grpc.aio.EOF:
                        if job.outcome is not None:
                            return
                        move(limit, idle_s)
                        request = wire.read_request_frame(frame)
                        if not isinstance(request, wire.Chunk):
                            text = "a frame after the header is not a chunk"
                            raise Problem(Reason.STREAM_PROTOCOL, text)
                        upload.write(request)
                finally:
                    leaving.cancel()
        except grpc.aio.InternalError as error:
            raise ClientGoneError from error
        except asyncio.TimeoutError:
            if job.outcome is None:
                raise idle(self._limits.stream_idle_ms, "sent") from None
        if job.outcome is None:
            upload.finish()

    async def send(self, job: Job, execution: Execution, digests: Mapping[str, bytes]) -> None:
        """Send the result: its header, then the outputs' chunks, unless its client has them."""
        sending: asyncio.Future[None] | None = None
        try:
            for frame in self._result_frames(job, execution, digests):
                if sending is not None:
                    await sending
                sending = asyncio.ensure_future(self._write(frame))
                await asyncio.sleep(0)  # it begins, and goes out while the next frame is made
            if sending is not None:
                await sending
        finally:
            if sending is not None:
                sending.cancel()

    def _result_frames(
        self, job: Job, execution: Execution, digests: Mapping[str, bytes]
    ) -> Iterator[bytes]:
        outputs = job.checked.outputs
        result = wire.result_message(outputs, execution, digests)
        yield pb.ExecuteResponse(result=result).SerializeToString()
        if job.lease is not None:
            return
        chunk_bytes = wire.chunk_bytes(self._limits)
        for index, name in enumerate(outputs):
            view = job.output(name)
            for at in range(0, view.nbytes, chunk_bytes):
                chunk = wire.Chunk(index, at, view[at : at + chunk_bytes])
                yield wire.chunk_frame(chunk, response=True)

    async def _read(self) -> bytes | None:
        frame = await in_time(self._context.read(), self._limits.stream_idle_ms, "sent")
        return None if frame is grpc.aio.EOF else frame

    async def _write(self, frame: bytes) -> None:
        await in_time(self._context.write(frame), self._limits.stream_idle_ms, "read")


async def in_time(operation: Awaitable[_T], idle_ms: int, verb: str) -> _T:
    """Do something with a peer that is to send or to read.

    Args:
        operation: what is done.
        idle_ms: how long it may take.
        verb: what the peer does in it, for the error's text: "sent" or "read".

    Raises:
        Problem: STREAM_IDLE.
        ClientGoneError: if the connection is gone.
    """
    try:
        async with timeout(idle_ms / 1000):
            return await operation
    except (grpc.aio.InternalError, grpc.aio.UsageError) as err:
        # what grpc says when the connection is gone in the middle of an operation, or before it
        raise ClientGoneError from err
    except asyncio.TimeoutError:
        raise idle(idle_ms, verb) from None


def idle(idle_ms: int, verb: str) -> Problem:
    """Return the problem of a peer that *verb* ("sent" or "read") nothing for *idle_ms* ms."""
    return Problem(
        Reason.STREAM_IDLE,
        f"the client {verb} nothing for {idle_ms} ms",
        argument="stream_idle_ms",
        allowed=str(idle_ms),
    )


async def _end_with(job: Job, limit: Timeout) -> None:
    """Let a limit end when the server sends a job away."""
    await job.sent_away.wait()
    move(limit, 0.0)
