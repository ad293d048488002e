"""Frames and streams as a peer may send them that is not our SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from opferry import errors, wire
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import rotary_pb2, tensor_pb2
from tests.support.calls import GRAD, Subject

HALF_TND = rotary_pb2.ApplyRotaryPosEmbGradAttributes(
    rotary_mode=rotary_pb2.ROTARY_MODE_HALF, layout=rotary_pb2.LAYOUT_TND
)


def half_tnd(subject: Subject) -> dict[str, Any]:
    """Return an operator's attributes, half and TND, by their field in a message."""
    attributes = subject.operator.parse_attributes({"layout": 4})
    return {subject.name: wire.attributes_message(subject.operator, attributes)}


def spec(name: str, shape: Iterable[int], **fields: Any) -> tensor_pb2.TensorSpec:
    """Return a float32 spec; fields override."""
    extents = list(shape)
    size = 4
    for extent in extents:
        size *= extent
    usual = {
        "name": name,
        "data_type": tensor_pb2.DATA_TYPE_FLOAT32,
        "shape": extents,
        "data_bytes": size,
    }
    return tensor_pb2.TensorSpec(**{**usual, **fields})


def small_specs(
    tokens: int = 2, width: int = 8, subject: Subject = GRAD
) -> list[tensor_pb2.TensorSpec]:
    """Return the specs of a valid TND call, one head; the backward's without query and key."""
    names = (*subject.vectors, "cos", "sin")
    return [spec(name, (tokens, 1, width)) for name in names]


def header(specs: list[tensor_pb2.TensorSpec] | None = None, **fields: Any) -> pb.ExecuteHeader:
    """Return the header of a call of ApplyRotaryPosEmbGrad; valid by default."""
    usual = {
        "inputs": small_specs() if specs is None else specs,
        "apply_rotary_pos_emb_grad": HALF_TND,
    }
    return pb.ExecuteHeader(**{**usual, **fields})


def header_frame(*args: Any, **fields: Any) -> bytes:
    """Return the frame of `header`."""
    return pb.ExecuteRequest(header=header(*args, **fields)).SerializeToString()


def chunk(index: int, offset: int, data: bytes) -> bytes:
    """Return the frame of a chunk."""
    return wire.chunk_frame(wire.Chunk(index, offset, memoryview(data)))


def body(tokens: int = 2, width: int = 8) -> list[bytes]:
    """Return the chunks of a valid call with `small_specs`: zeros."""
    return [chunk(index, 0, bytes(4 * tokens * width)) for index in range(4)]


def stream(address: str, frames: Iterable[bytes], timeout: float = 10.0) -> list[Any]:
    """Send frames on an Execute stream at once and return the responses; raises our errors."""
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(address, options) as channel:
        method: Any = channel.stream_stream(wire.methods["Execute"].path)
        try:
            return [wire.read_response_frame(f) for f in method(iter(frames), timeout=timeout)]
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address) from error


def unary(address: str, name: str, request: bytes, timeout: float = 10.0) -> bytes:
    """Make a unary call with raw bytes; raises our errors."""
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(address, options) as channel:
        try:
            reply: bytes = channel.unary_unary(wire.methods[name].path)(request, timeout=timeout)
            return reply
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address) from error


def slowly(frames: Iterable[bytes], then: Any) -> Iterator[bytes]:
    """Yield frames, then wait for an event before ending the stream."""
    yield from frames
    then.wait()
