"""One Validate stream: its frames in and out, and the cases that are under way on it."""

from __future__ import annotations

import asyncio

import grpc
from google.protobuf.message import DecodeError

from opferry import wire
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import validation_pb2 as pb
from opferry_server.requests import ClientGoneError
from opferry_server.streams import Context, in_time


class PeerStillError(Exception):
    """The client does not read; `problem` says so. It ends the stream, whatever was to be sent."""

    def __init__(self, problem: Problem) -> None:
        """Carry *problem*."""
        super().__init__(problem.message)
        self.problem = problem


class ValidateStream:
    """The server's end of one Validate stream.

    Every method raises ClientGoneError when the peer is gone.
    """

    def __init__(self, context: Context, limits: LimitsConfig) -> None:
        """Speak on the stream of *context*, within *limits*."""
        self._context = context
        self._limits = limits
        self._writing = asyncio.Lock()

    async def header(self) -> pb.ValidateHeader:
        """Receive the header.

        Raises:
            Problem: STREAM_PROTOCOL if anything else comes first, STREAM_IDLE if nothing does.
        """
        frame = await in_time(self.read(), self._limits.stream_idle_ms, "sent")
        if frame is None:
            raise Problem(Reason.STREAM_PROTOCOL, "the stream ended before its header")
        if not frame.HasField("header"):
            raise Problem(Reason.STREAM_PROTOCOL, "the first frame is no header")
        return frame.header

    async def read(self) -> pb.ValidateRequest | None:
        """Receive a frame; None at the end.

        Raises:
            Problem: STREAM_PROTOCOL for bytes that are no frame.
        """
        try:
            data = await self._context.read()
        except grpc.aio.InternalError as error:
            raise ClientGoneError from error
        if data is grpc.aio.EOF:
            return None
        try:
            frame = pb.ValidateRequest.FromString(data)
        except DecodeError as error:
            text = "the frame is no message of the schema"
            raise Problem(Reason.STREAM_PROTOCOL, text) from error
        wire.refuse_unknown_fields(frame, deep=False)
        if frame.HasField("chunk"):
            wire.refuse_unknown_fields(frame.chunk, deep=False)
        return frame

    async def write(self, frame: pb.ValidateResponse) -> None:
        """Send a frame.

        Raises:
            PeerStillError: if the peer does not read.
        """
        data = frame.SerializeToString()
        async with self._writing:
            try:
                await in_time(self._context.write(data), self._limits.stream_idle_ms, "read")
            except Problem as problem:
                raise PeerStillError(problem) from problem

    async def send_tensor(self, chunk: pb.CaseChunk, data: memoryview) -> None:
        """Send a tensor in chunks; *chunk* says which."""
        step = wire.chunk_bytes(self._limits)
        for at in range(0, data.nbytes, step):
            chunk.offset_bytes, chunk.data = at, bytes(data[at : at + step])
            await self.write(pb.ValidateResponse(chunk=chunk))
