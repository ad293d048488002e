"""The method ExecuteMany: many small calls over one stream.

Each call is a request of its own, with its id, its place in the lines and its line in the log. Only
the messages are shared: what a stream costs is paid once, and results that are ready together
travel together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from opferry import wire
from opferry.core.limits import MIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from opferry_server.requests import ClientGoneError, Requests
from opferry_server.served import current_served
from opferry_server.streams import Context, in_time

UNDER_WAY_COUNT = 128
"""The calls of one stream that are read before the result of the first of them is sent."""

UNDER_WAY_BYTES = 16 * MIB
"""What they, and results that the client has not yet read, may take."""

MESSAGE_BYTES = 1 * MIB
"""What a message holds at the most, unless it is a single result that takes more."""

RESULT_BYTES = 16
"""More than what a message needs for a result beside it."""

GATHER_S = 0.005
"""How long results wait for others to travel with, while calls are under way."""

Behavior = Callable[[Any, Context, object], Awaitable[bytes]]
"""Executes an operator's request, in its turn among those of other owners; returns the response,
serialised."""


class ManyCalls:
    """The calls of one ExecuteMany stream."""

    def __init__(
        self,
        context: Context,
        limits: LimitsConfig,
        requests: Requests,
        behaviors: Mapping[str, Behavior],
    ) -> None:
        """Lead the stream of *context*.

        Args:
            context: the stream.
            limits: the server's limits.
            requests: what is around every request.
            behaviors: by an operator's Python name, what executes its requests.
        """
        self._context = context
        self._limits = limits
        self._requests = requests
        self._behaviors = behaviors
        self._stream = current_served()
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._results: deque[pb.ManyResult] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def lead(self) -> None:
        """Execute calls until the client ends its side and the last result is sent.

        Raises:
            Problem: STREAM_PROTOCOL, STREAM_IDLE, or FIELD_UNKNOWN of a message.
            ClientGoneError: if the connection is gone.
        """
        reading = asyncio.ensure_future(self._take_all())
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while self._tasks or self._results or not reading.done():
                await self._changed.wait()
                if self._tasks:
                    await asyncio.sleep(GATHER_S)
                self._changed.clear()
                await self._send_results()
                if reading.done():
                    reading.result()
        finally:
            ending = [reading, *self._tasks]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _take_all(self) -> None:
        while (message := await self._read()) is not None:
            wire.refuse_unknown_fields(message, deep=False)
            for call in message.calls:
                while not self._has_room():
                    self._room.clear()
                    await self._room.wait()
                self._begin(call)

    def _has_room(self) -> bool:
        under_way = len(self._tasks) + len(self._results)
        return under_way < UNDER_WAY_COUNT and self._bytes < UNDER_WAY_BYTES

    async def _read(self) -> pb.ExecuteManyRequest | None:
        """Return the next message; None at the end. A client that waits for results may be still.

        Raises:
            Problem: STREAM_IDLE, or STREAM_PROTOCOL for bytes that are no message.
        """
        reading = asyncio.ensure_future(self._read_bytes())
        try:
            while not reading.done():
                busy = bool(self._tasks)
                await asyncio.wait((reading,), timeout=self._limits.stream_idle_ms / 1000)
                if not reading.done() and not busy and not self._tasks:
                    raise Problem(
                        Reason.STREAM_IDLE,
                        f"the client sent nothing for {self._limits.stream_idle_ms} ms, and no "
                        "call is under way",
                        argument="stream_idle_ms",
                        allowed=str(self._limits.stream_idle_ms),
                    )
            data = reading.result()
        finally:
            reading.cancel()
        try:
            return None if data is None else pb.ExecuteManyRequest.FromString(data)
        except DecodeError as error:
            text = "the message is none of the schema"
            raise Problem(Reason.STREAM_PROTOCOL, text) from error

    async def _read_bytes(self) -> bytes | None:
        try:
            data = await self._context.read()
        except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
            raise ClientGoneError from error
        return None if data is grpc.aio.EOF else data

    def _begin(self, call: pb.ManyCall) -> None:
        size_bytes = call.ByteSize()
        self._bytes += size_bytes
        task = asyncio.ensure_future(self._call(call))
        self._tasks.add(task)

        def ended(_: object) -> None:
            self._tasks.discard(task)
            self._bytes -= size_bytes
            self._room.set()
            self._changed.set()

        task.add_done_callback(ended)

    async def _call(self, call: pb.ManyCall) -> None:
        """Execute a call and put its result, whatever it is, among those to be sent."""
        served = self._requests.begin("ExecuteMany", "call", self._context, self._stream)
        result = pb.ManyResult(call_id=call.call_id)
        try:
            response = await self._requests.attempt(served, self._execute, call)
            field = call.WhichOneof("request")
            assert field is not None  # noqa: S101 - it was executed
            getattr(result, field).MergeFromString(response)
        except Problem as problem:
            result.error = self._requests.status(problem, served.request_id).SerializeToString()
        self._results.append(result)
        self._bytes += result.ByteSize()

    async def _execute(self, call: pb.ManyCall) -> bytes:
        wire.refuse_unknown_fields(call, deep=False)
        field = call.WhichOneof("request")
        if field is None:
            raise Problem(Reason.OPERATOR_NOT_SUPPORTED, f"call {call.call_id} names no operator")
        return await self._behaviors[field](getattr(call, field), self._context, self)

    async def _send_results(self) -> None:
        """Send the results that are there; those that come meanwhile gather for the next time."""
        count = len(self._results)
        while count:
            message = pb.ExecuteManyResponse()
            room_bytes = min(MESSAGE_BYTES, self._limits.message_bytes)
            sent_bytes = 0
            while count:
                size_bytes = self._results[0].ByteSize()
                room_bytes -= size_bytes + RESULT_BYTES
                if message.results and room_bytes < 0:
                    break
                message.results.append(self._results.popleft())
                count -= 1
                sent_bytes += size_bytes
            data = message.SerializeToString()
            await in_time(self._context.write(data), self._limits.stream_idle_ms, "read")
            self._bytes -= sent_bytes
            self._room.set()
