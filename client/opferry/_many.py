"""Many small calls over one stream, without any input or output of their own.

Like `_validating.ValidateSession`, a session goes over as many streams as it takes, and its
outcomes come in the order of the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from opferry import errors, wire
from opferry._calls import PreparedCall, fits_unary, prepare
from opferry._result_buffers import ResultBuffers
from opferry._sessions import broken_off
from opferry._tries import result_of
from opferry.core.execution import ExecutionOptions
from opferry.core.limits import KIB, MIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators import operator_named
from opferry.results import CallOutcome
from opferry.v1 import operator_service_pb2 as pb

WINDOW_COUNT = 96
"""The most calls under way: enough to keep client, server and worker busy at the same time."""

WINDOW_BYTES = 4 * MIB
"""The most that they may carry there, or back."""

MESSAGE_BYTES = 256 * KIB
"""What a message holds at the most, unless it is a single call that takes more."""

CALL_BYTES = 32
"""More than what a message needs for a call beside its request."""

BATCH_COUNT = 24
"""So many calls go in a message, if there are so many: each message costs as much as a call."""

AHEAD = 4
"""So many times the window may be drawn before the slowest call has its outcome."""


@dataclass
class _Entry:
    """A call on its way."""

    position: int
    prepared: PreparedCall

    @property
    def size_bytes(self) -> int:
        """What it carries in the direction in which it carries more."""
        return max(self.prepared.checked.input_bytes, self.prepared.checked.output_bytes)


class LargeCall(NamedTuple):
    """A call that no message carries: whoever gets this in place of its outcome is to make it."""

    position: int
    """Its position among the calls."""
    prepared: PreparedCall
    """The call."""


class ManySession:
    """The calls of one `execute_many`, on their way to their outcomes."""

    method = "ExecuteMany"
    """Which streams it goes over."""

    def __init__(
        self,
        calls: Iterable[Mapping[str, Any]],
        prepare: Callable[[Mapping[str, Any]], PreparedCall],
        limits: LimitsConfig,
        buffers: ResultBuffers,
    ) -> None:
        """Begin.

        Args:
            calls: the inputs of each call by name; drawn as they are sent.
            prepare: makes a call of its inputs, or raises an OpFerryError.
            limits: what the server allows.
            buffers: where the results are to lie.
        """
        self._buffers = buffers
        self._calls = iter(calls)
        self._prepare = prepare
        self._limits = limits
        self._again: deque[_Entry] = deque()
        self._to_send: deque[_Entry] = deque()
        self._open: dict[int, _Entry] = {}
        self._open_bytes = 0
        self._done: dict[int, CallOutcome | LargeCall] = {}
        self._drawn = 0
        self._yielded = 0
        self._exhausted = False
        self.welcomed = False
        """Whether a server has answered a call at least once."""

    @property
    def finished(self) -> bool:
        """Whether every call has its outcome, and every outcome has been taken."""
        return self._exhausted and self._yielded == self._drawn

    @property
    def all_sent(self) -> bool:
        """Whether this stream needs no further call."""
        return self._exhausted and not self._again and not self._to_send

    @property
    def under_way(self) -> bool:
        """Whether a call on this stream is without its outcome."""
        return bool(self._open)

    def header(self) -> bytes:
        """Return the first message of a new stream; what had no outcome on the last goes again."""
        again = [*self._open.values(), *self._to_send, *self._again]
        self._again = deque(sorted(again, key=lambda entry: entry.position))
        self._to_send.clear()
        self._open.clear()
        self._open_bytes = 0
        self._draw()
        return self._message()

    def receive(self, frame: bytes) -> None:
        """Take in a message.

        Raises:
            OpFerryError: a TransportError if it is not as the schema says; what may be tried again,
                on another stream.
        """
        try:
            response = pb.ExecuteManyResponse.FromString(frame)
        except DecodeError as error:
            problem = Problem(Reason.STREAM_PROTOCOL, "a message is none of the schema")
            raise errors.unreadable(problem) from error
        self.welcomed = True
        for result in response.results:
            self._settle(result)

    def to_send(self) -> Iterator[Iterator[bytes]]:
        """Yield what is to be sent now: calls travel together while enough others are under way."""
        self._draw()
        while self._to_send and (len(self._to_send) >= BATCH_COUNT or self._is_low()):
            yield iter((self._message(),))
            self._draw()

    def _is_low(self) -> bool:
        """Return whether calls must not wait for others: those are few, or no more come soon."""
        ready, under_way = len(self._to_send), len(self._open)
        return under_way < BATCH_COUNT or under_way + ready < WINDOW_COUNT - BATCH_COUNT

    def results(self) -> Iterator[CallOutcome | LargeCall]:
        """Yield the outcomes that are there, and large calls, in the order of the calls."""
        self._draw()
        while self._yielded in self._done:
            self._yielded += 1
            yield self._done.pop(self._yielded - 1)
            self._draw()

    def stop(self, error: errors.OpFerryError) -> None:
        """Give up: what has no outcome has this error."""
        for entry in (*self._open.values(), *self._to_send, *self._again):
            self._done[entry.position] = CallOutcome(entry.position, error=error)
        self._open.clear()
        self._to_send.clear()
        self._again.clear()
        for _ in self._calls:
            self._done[self._drawn] = CallOutcome(self._drawn, error=error)
            self._drawn += 1
        self._exhausted = True

    def _draw(self) -> None:
        """Have as many calls ready to be sent as may be under way."""
        while self._has_room():
            entry = self._again.popleft() if self._again else self._next()
            if entry is None:
                return
            self._to_send.append(entry)
            self._open_bytes += entry.size_bytes

    def _has_room(self) -> bool:
        return (
            len(self._open) + len(self._to_send) < WINDOW_COUNT and self._open_bytes < WINDOW_BYTES
        )

    def _next(self) -> _Entry | None:
        """Draw calls until one is to be sent; the others have their outcomes at once."""
        while not self._exhausted and self._drawn - self._yielded < AHEAD * WINDOW_COUNT:
            try:
                inputs = next(self._calls)
            except StopIteration:
                self._exhausted = True
                break
            position, self._drawn = self._drawn, self._drawn + 1
            try:
                prepared = self._prepare(inputs)
                if fits_unary(prepared, self._limits):
                    return _Entry(position, prepared)
                self._done[position] = LargeCall(position, prepared)
            except errors.OpFerryError as error:
                self._done[position] = CallOutcome(position, error=error)
        return None

    def _message(self) -> bytes:
        """Return a message of calls that are ready, and count them as under way."""
        message = pb.ExecuteManyRequest()
        room_bytes = min(MESSAGE_BYTES, self._limits.message_bytes)
        while self._to_send:
            entry = self._to_send[0]
            request = entry.prepared.unary_request()
            room_bytes -= len(request) + CALL_BYTES
            if message.calls and room_bytes < 0:
                break
            call = message.calls.add(call_id=entry.position)
            getattr(call, entry.prepared.call.operator.python_name).MergeFromString(request)
            self._open[entry.position] = self._to_send.popleft()
        return message.SerializeToString()

    def _settle(self, result: pb.ManyResult) -> None:
        entry = self._open.get(result.call_id)
        if entry is None:
            text = f"a result is of call {result.call_id}, which is not under way"
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, text))
        field = entry.prepared.call.operator.python_name
        if result.error:
            error = broken_off(errors.from_status(result.error))
            if error.may_retry:
                raise error  # the call stays open: it goes on the next stream
            outcome = CallOutcome(entry.position, error=error)
        elif not result.HasField(field):
            text = f"the result of call {result.call_id} is of another operator"
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, text))
        else:
            outcome = self._outcome(entry, getattr(result, field))
        del self._open[result.call_id]
        self._open_bytes -= entry.size_bytes
        self._done[entry.position] = outcome

    def _outcome(self, entry: _Entry, response: Any) -> CallOutcome:
        data = wire.take_data(response)
        try:
            value = result_of(entry.prepared, response, data, self._buffers)
            return CallOutcome(entry.position, value=value)
        except errors.OpFerryError as error:
            return CallOutcome(entry.position, error=error)


def many_session(
    operator_name: str,
    calls: Iterable[Mapping[str, Any]],
    limits: LimitsConfig,
    buffers: ResultBuffers,
    options: ExecutionOptions,
    *,
    attributes: Mapping[str, Any],
    operator_package: str,
    keep_strides: bool,
    checksum: bool,
) -> ManySession:
    """Return the session of many calls; the words are those of `Client.execute_many`.

    Raises:
        OpFerryError: a RequestError for an operator that is not served.
    """
    try:
        operator = operator_named(operator_name)
    except Problem as problem:
        raise errors.from_problem(problem) from problem

    def prepare_one(inputs: Mapping[str, Any]) -> PreparedCall:
        return prepare(
            operator.name,
            inputs,
            attributes,
            options,
            operator_package=operator_package,
            keep_strides=keep_strides,
            checksum=checksum,
            copy=True,
        )

    return ManySession(calls, prepare_one, limits, buffers)
