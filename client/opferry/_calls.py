"""Calls without any input or output of their own: what both clients share.

A call is prepared (contract, bytes), then tried; `StreamTry` and `unary_result` turn the bytes of
one try into a result. The clients only move the bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry import errors, wire
from opferry.core.execution import Execution, ExecutionOptions
from opferry.core.limits import KIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, from_array, raw_bytes
from opferry.operators import OPERATORS
from opferry.operators.call import Call, CallResult, CheckedCall, check_contract, check_limits
from opferry.results import Progress, ProgressState
from opferry.v1 import operator_service_pb2 as pb

UNARY_BYTES = 256 * KIB
"""Up to here a unary call is faster than a stream, measured on loopback."""

OnProgress = Callable[[Progress], None]

_STATES = {
    pb.ExecuteProgress.STATE_QUEUED: ProgressState.QUEUED,
    pb.ExecuteProgress.STATE_UPLOADING: ProgressState.UPLOADING,
    pb.ExecuteProgress.STATE_RUNNING: ProgressState.RUNNING,
}


@dataclass(frozen=True)
class PreparedCall:
    """A call that passed the contract, with its data."""

    checked: CheckedCall
    """The call."""
    data: Mapping[str, memoryview]
    """The inputs' bytes by name, in the order of the call's inputs."""

    @property
    def call(self) -> Call:
        """The call itself."""
        return self.checked.call


def prepare(
    name: str,
    arrays: Mapping[str, Any],
    attributes: Mapping[str, Any],
    options: ExecutionOptions,
    *,
    operator_package: str = "",
    keep_strides: bool = False,
    checksum: bool = False,
) -> PreparedCall:
    """Return the call of an operator on arrays.

    Args:
        name: the operator's CANN name.
        arrays: the inputs by name; None where an optional one is absent.
        attributes: by name, as users write them.
        options: how to execute it.
        operator_package: which operator package runs it.
        keep_strides: send views as views.
        checksum: send a digest with each input.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    operator = OPERATORS[name]
    try:
        tensors = {
            name: from_array(name, array, keep_strides=keep_strides)
            for name, array in arrays.items()
            if array is not None
        }
        call = Call(
            operator=operator,
            attributes=operator.parse_attributes(attributes),
            inputs={name: tensor.spec for name, tensor in tensors.items()},
            options=options,
            operator_package=operator_package,
            digests={
                name: xxhash.xxh3_64_digest(tensor.data)
                for name, tensor in tensors.items()
                if checksum
            },
        )
        return prepare_tensors(call, tensors)
    except Problem as problem:
        raise errors.from_problem(problem) from problem


def prepare_tensors(call: Call, tensors: Mapping[str, HostTensor]) -> PreparedCall:
    """Return a call with its tensors' bytes.

    Raises:
        Problem: if the call breaks the contract.
    """
    return PreparedCall(check_contract(call), {name: tensors[name].data for name in call.inputs})


def prepare_plan(
    name: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], operator_package: str
) -> Call:
    """Return the call to plan; inputs are arrays or specs, None where absent.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    operator = OPERATORS[name]
    try:
        specs = {
            name: given if isinstance(given, TensorSpec) else from_array(name, given).spec
            for name, given in inputs.items()
            if given is not None
        }
        call = Call(
            operator,
            operator.parse_attributes(attributes),
            specs,
            operator_package=operator_package,
        )
        check_contract(call)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    return call


def fits_unary(prepared: PreparedCall, limits: LimitsConfig) -> bool:
    """Check the call against the server's limits and return whether a unary call carries it.

    Raises:
        OpFerryError: a TooLargeError, in the words in which the server would refuse.
    """
    try:
        check_limits(prepared.checked, limits)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    size = max(prepared.checked.input_bytes, prepared.checked.output_bytes)
    return size <= min(limits.unary_bytes, UNARY_BYTES)


class Clock:
    """The time that is left for a call, over all its tries."""

    def __init__(self, timeout_s: float) -> None:
        """Start a clock of *timeout_s* seconds."""
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds left, never less than 0."""
        return max(0.0, self._end_s - time.monotonic())


class StreamTry:
    """One try of a call as an Execute stream: frames to send, frames received, the result."""

    def __init__(
        self, prepared: PreparedCall, limits: LimitsConfig, on_progress: OnProgress | None
    ) -> None:
        """Begin a try."""
        self._prepared = prepared
        self._chunk_bytes = wire.chunk_bytes(limits)
        self._on_progress = on_progress
        self._specs: list[TensorSpec] = []
        self._names: list[str] = []
        self._digests: list[bytes] = []
        self._arrays: list[NDArray[Any]] = []
        self._received: list[int] = []
        self._execution: Execution | None = None
        self._began_s = 0.0
        self.admitted = False
        """Whether the server has room and the chunks may be sent."""

    def header(self) -> bytes:
        """Return the first frame."""
        header = wire.header_message(self._prepared.call)
        return pb.ExecuteRequest(header=header).SerializeToString()

    def chunks(self) -> Iterator[bytes]:
        """Yield the frames of the inputs' data, each made when it is needed."""
        for index, data in enumerate(self._prepared.data.values()):
            for at in range(0, data.nbytes, self._chunk_bytes):
                yield wire.chunk_frame(wire.Chunk(index, at, data[at : at + self._chunk_bytes]))

    def receive(self, frame: bytes) -> None:
        """Take in a frame.

        Raises:
            OpFerryError: if it is not as the schema says.
        """
        try:
            response = wire.read_response_frame(frame)
            if isinstance(response, wire.Chunk):
                self._put(response)
            elif response.HasField("result"):
                self._begin(response.result)
            elif response.HasField("progress"):
                self._progress(response.progress)
        except Problem as problem:
            raise errors.unreadable(problem) from problem

    def result(self) -> CallResult:
        """Return the result, after the last frame.

        Raises:
            OpFerryError: if something is missing or was changed on the way.
        """
        if self._execution is None:
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, "the stream had no result"))
        for name, spec, received in zip(self._names, self._specs, self._received, strict=True):
            if received != spec.data_bytes:
                text = f"{name} ended after {received} of {spec.data_bytes} bytes"
                raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, text))
        outputs = dict(zip(self._names, self._arrays, strict=True))
        for name, digest in zip(self._names, self._digests, strict=True):
            check_digest(name, outputs[name], digest, self._execution.request_id)
        return CallResult(
            outputs, _with_download(self._execution, time.monotonic() - self._began_s)
        )

    def _progress(self, message: pb.ExecuteProgress) -> None:
        self.admitted = self.admitted or message.state != pb.ExecuteProgress.STATE_QUEUED
        state = _STATES.get(message.state)
        if self._on_progress is not None and state is not None:
            self._on_progress(Progress(state, message.position, message.request_id))

    def _begin(self, message: pb.ExecuteResult) -> None:
        limits = LimitsConfig()
        self._began_s = time.monotonic()
        self._execution = wire.execution_from_message(message.execution)
        for item in message.outputs:
            spec = wire.spec_from_message(item.name, item, limits)
            self._names.append(item.name)
            self._specs.append(spec)
            self._digests.append(item.xxh3_64)
            self._arrays.append(np.empty(spec.shape, spec.dtype.numpy))
            self._received.append(0)

    def _put(self, chunk: wire.Chunk) -> None:
        index, size = chunk.tensor_index, chunk.data.nbytes
        if index >= len(self._specs) or chunk.offset_bytes != self._received[index]:
            raise Problem(Reason.STREAM_PROTOCOL, "a chunk is out of place")
        if chunk.offset_bytes + size > self._specs[index].data_bytes:
            raise Problem(Reason.STREAM_PROTOCOL, f"{self._names[index]} has bytes too many")
        target = raw_bytes(self._arrays[index])
        target[chunk.offset_bytes : chunk.offset_bytes + size] = chunk.data
        self._received[index] += size


def unary_result(operator_name: str, response: Any) -> CallResult:
    """Return the result of a unary call's response.

    Raises:
        OpFerryError: if it is not as the schema says.
    """
    execution = wire.execution_from_message(response.execution)
    outputs: dict[str, NDArray[Any]] = {}
    for output in OPERATORS[operator_name].outputs:
        if not response.HasField(output.name):
            continue
        tensor = getattr(response, output.name)
        try:
            spec = wire.spec_from_message(output.name, tensor.spec, LimitsConfig())
        except Problem as problem:
            raise errors.unreadable(problem) from problem
        data = tensor.data
        if len(data) != spec.data_bytes:
            text = f"{output.name} has {len(data)} of {spec.data_bytes} bytes"
            raise errors.unreadable(Problem(Reason.STREAM_PROTOCOL, text))
        # a copy of the bytes: a result is the caller's own, and writable
        array = np.frombuffer(bytearray(data), spec.dtype.numpy).reshape(spec.shape)
        check_digest(output.name, array, tensor.spec.xxh3_64, execution.request_id)
        outputs[output.name] = array
    return CallResult(outputs, execution)


def check_digest(name: str, array: NDArray[Any], digest: bytes, request_id: str) -> None:
    """Check an output against its digest; an empty digest is none.

    Raises:
        OpFerryError: an InvalidTensorError, if it was changed on the way.
    """
    if digest and xxhash.xxh3_64_digest(raw_bytes(array)) != digest:
        text = f"{name} was changed on the way: its digest is not the one that the server sent"
        problem = Problem(Reason.CHECKSUM_MISMATCH, text, argument=name)
        raise errors.from_problem(problem, request_id)


def _with_download(execution: Execution, seconds: float) -> Execution:
    timings = {**vars(execution.timings), "download_ns": round(seconds * 1e9)}
    return Execution(**{**vars(execution), "timings": type(execution.timings)(**timings)})
