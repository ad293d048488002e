"""One try of a call: the frames to send, the frames received, the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import xxhash
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from opferry import errors, wire
from opferry._calls import PreparedCall
from opferry._result_buffers import ResultBuffers
from opferry.core.execution import Execution
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, copy_bytes, raw_bytes
from opferry.operators.call import CallResult
from opferry.results import Progress, ProgressState
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2

OnProgress = Callable[[Progress], None]
"""What is told how far a request is."""

_STATES = {
    pb.ExecuteProgress.STATE_QUEUED: ProgressState.QUEUED,
    pb.ExecuteProgress.STATE_UPLOADING: ProgressState.UPLOADING,
    pb.ExecuteProgress.STATE_RUNNING: ProgressState.RUNNING,
}


class StreamTry:
    """One try of a call as an Execute stream: frames to send, frames received, the result."""

    def __init__(
        self,
        prepared: PreparedCall,
        limits: LimitsConfig,
        on_progress: OnProgress | None,
        buffers: ResultBuffers,
    ) -> None:
        """Begin a try, whose outputs are to lie in *buffers*."""
        self._prepared = prepared
        self._buffers = buffers
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
        # gRPC's threads may hold this try for a while; the arrays are the caller's alone
        self._arrays.clear()
        for name, digest in zip(self._names, self._digests, strict=True):
            check_digest(name, outputs[name], digest, self._execution.request_id)
        return CallResult(
            outputs, _with_download(self._execution, time.monotonic() - self._began_s)
        )

    def _progress(self, message: pb.ExecuteProgress) -> None:
        self.admitted = self.admitted or message.state != pb.ExecuteProgress.STATE_QUEUED
        state = _STATES.get(message.state)
        if self._on_progress is not None and state is not None:
            self._on_progress(
                Progress(
                    state, message.position, message.request_id, message.expected_wait_ms / 1000
                )
            )

    def _begin(self, message: pb.ExecuteResult) -> None:
        if self._execution is not None:
            raise Problem(Reason.STREAM_PROTOCOL, "the stream has two results")
        self._began_s = time.monotonic()
        self._execution = wire.execution_from_message(message.execution)
        for name, item in check_outputs(self._prepared, message.outputs).items():
            # of our own spec: what the server says has been found to be the same
            spec = self._prepared.checked.outputs[name]
            self._names.append(name)
            self._specs.append(spec)
            self._digests.append(item.xxh3_64)
            array, received_bytes = self._output(name, spec)
            self._arrays.append(array)
            self._received.append(received_bytes)

    def _output(self, name: str, spec: TensorSpec) -> tuple[NDArray[Any], int]:
        """Return the array for an output, and how many bytes of it are there already."""
        return self._buffers.array(spec), 0

    def _put(self, chunk: wire.Chunk) -> None:
        index, size = chunk.tensor_index, chunk.data.nbytes
        if not 0 <= index < len(self._specs) or chunk.offset_bytes != self._received[index]:
            raise Problem(Reason.STREAM_PROTOCOL, "a chunk is out of place")
        if chunk.offset_bytes + size > self._specs[index].data_bytes:
            raise Problem(Reason.STREAM_PROTOCOL, f"{self._names[index]} has bytes too many")
        target = raw_bytes(self._arrays[index])
        target[chunk.offset_bytes : chunk.offset_bytes + size] = chunk.data
        self._received[index] += size


def check_outputs(
    prepared: PreparedCall, messages: Iterable[tensor_pb2.TensorSpec]
) -> dict[str, tensor_pb2.TensorSpec]:
    """Return a reply's specs by name, having checked that they are those of the call's outputs.

    Raises:
        Problem: if a name, dtype or shape is another, or an output is missing, twice or too many.
    """
    expected = prepared.checked.outputs
    found = list(messages)
    if [item.name for item in found] != list(expected):
        names = ", ".join(item.name[:40] for item in found[:16])
        raise Problem(
            Reason.STREAM_PROTOCOL, f"it has the outputs {names}, not {', '.join(expected)}"
        )
    if all(item == wire.spec_message(item.name, expected[item.name]) for item in found):
        return {item.name: item for item in found}  # to the letter, as without digests
    for item in found:
        spec, wanted = wire.spec_from_message(item.name, item, LimitsConfig()), expected[item.name]
        if (spec.dtype, spec.shape) != (wanted.dtype, wanted.shape) or not spec.is_contiguous:
            raise Problem(
                Reason.STREAM_PROTOCOL,
                f"{item.name} is {spec.dtype.value} {list(spec.shape)}, not "
                f"{wanted.dtype.value} {list(wanted.shape)}",
            )
    return {item.name: item for item in found}


def unary_result(prepared: PreparedCall, frame: bytes, buffers: ResultBuffers) -> CallResult:
    """Return the result of a unary call's serialised response, in *buffers*.

    Raises:
        OpFerryError: if it is not what was asked for, or not as the schema says.
    """
    try:
        response, data = wire.read(wire.methods[prepared.call.operator.name].response, frame)
    except DecodeError as error:
        problem = Problem(Reason.STREAM_PROTOCOL, "the response is no message of the schema")
        raise errors.unreadable(problem) from error
    return result_of(prepared, response, data, buffers)


def result_of(
    prepared: PreparedCall,
    response: Any,
    data: Mapping[str, memoryview],
    buffers: ResultBuffers,
) -> CallResult:
    """Return the result of a response whose data are apart; else as `unary_result`.

    Raises:
        OpFerryError: if it is not what was asked for, or not as the schema says.
    """
    outputs: dict[str, NDArray[Any]] = {}
    try:
        tensors = {name: getattr(response, name) for name in data}
        _check_tensors(prepared, tensors)
        for name, spec in prepared.checked.outputs.items():
            if len(data[name]) != spec.data_bytes:
                text = f"{name} has {len(data[name])} of {spec.data_bytes} bytes"
                raise Problem(Reason.STREAM_PROTOCOL, text)
            # a copy of the bytes: a result is the caller's own, and writable
            outputs[name] = buffers.array(spec)
            copy_bytes(data[name], raw_bytes(outputs[name]))
    except Problem as problem:
        raise errors.unreadable(problem) from problem
    execution = wire.execution_from_message(response.execution)
    for name, array in outputs.items():
        check_digest(name, array, tensors[name].spec.xxh3_64, execution.request_id)
    return CallResult(outputs, execution)


def _check_tensors(prepared: PreparedCall, tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if tensor.spec.name not in ("", name):
            text = f"{name} carries a tensor named {tensor.spec.name[:40]!r}"
            raise Problem(Reason.STREAM_PROTOCOL, text)
        tensor.spec.name = name
    check_outputs(prepared, (tensor.spec for tensor in tensors.values()))


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
