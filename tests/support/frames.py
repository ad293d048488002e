"""What the two readers of frames, the hand-written and the generated one, make of any bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from opferry.wire import Chunk, frames

Read = Callable[[bytes], Any]


def read_generated(message_class: Any, frame: bytes) -> Any:
    """Return what the generated parser makes of a frame: a chunk, a message, or None if refused.

    A chunk is a tuple of its tensor's index, its offset in bytes, and its bytes.
    """
    try:
        message = message_class.FromString(frame)
    except DecodeError:
        return None
    if message.WhichOneof("frame") == "chunk":
        return (message.chunk.tensor_index, message.chunk.offset_bytes, message.chunk.data)
    return message


def read_fast(read: Read, frame: bytes) -> Any:
    """Return the same of a hand-written reader; a problem that is no refusal, as it is."""
    try:
        result = read(frame)
    except Problem as problem:
        return None if problem.reason is Reason.STREAM_PROTOCOL else problem
    if isinstance(result, Chunk):
        return (result.tensor_index, result.offset_bytes, bytes(result.data))
    return result


def assert_agreement(frame: bytes, module: Any = frames) -> None:
    """Assert that both readers make the same of a frame, in both directions.

    Args:
        frame: any bytes.
        module: has the hand-written readers.

    Raises:
        AssertionError: with what each of them made of it.
    """
    request = read_generated(pb.ExecuteRequest, frame)
    assert read_fast(module.read_request_frame, frame) == request
    response = read_generated(pb.ExecuteResponse, frame)
    assert read_fast(module.read_response_frame, frame) == response


def varint(value: int, padding: int = 0) -> bytes:
    """Return a varint, longer than need be by *padding* bytes."""
    groups = []
    while True:
        groups.append(value & 0x7F)
        value >>= 7
        if not value:
            break
    groups += [0] * padding
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])
