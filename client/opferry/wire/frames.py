"""Frames of the Execute stream, and a reader and writer for chunks that copies nothing it need not.

A chunk frame is, on the wire, `tag length (08 index)? (10 offset)? 1a size payload`. The generated
parser would copy the payload; this reader returns it as a view of the received bytes. A frame of
any other form goes to the generated parser, so the two always agree.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from opferry.wire.varints import read_varint, varint

CHUNK_BYTES = 2 * 1024 * 1024
"""The payload of one chunk: the fastest of 64 KiB to 16 MiB when measured on loopback."""

_Frame = TypeVar("_Frame", pb.ExecuteRequest, pb.ExecuteResponse)

_REQUEST_TAG = pb.ExecuteRequest.CHUNK_FIELD_NUMBER << 3 | 2
_RESPONSE_TAG = pb.ExecuteResponse.CHUNK_FIELD_NUMBER << 3 | 2
_INDEX_TAG, _OFFSET_TAG, _DATA_TAG = 0x08, 0x10, 0x1A


class Chunk(NamedTuple):
    """A piece of one tensor's data."""

    tensor_index: int
    """The position of the tensor in the header's list."""
    offset_bytes: int
    """The position of the piece in the tensor's data."""
    data: memoryview
    """The bytes."""


FRAME_BYTES = 64
"""More than what the fields around a chunk's payload take."""


def chunk_bytes(limits: LimitsConfig) -> int:
    """Return the payload of a chunk that a server with these limits takes and sends."""
    return max(1, min(CHUNK_BYTES, limits.message_bytes - FRAME_BYTES))


def chunk_frame(chunk: Chunk, *, response: bool = False) -> bytes:
    """Return the serialised ExecuteRequest, or ExecuteResponse, that carries a chunk."""
    inner = bytearray()
    if chunk.tensor_index:
        inner += bytes((_INDEX_TAG,)) + varint(chunk.tensor_index)
    if chunk.offset_bytes:
        inner += bytes((_OFFSET_TAG,)) + varint(chunk.offset_bytes)
    size = chunk.data.nbytes
    if size:
        inner += bytes((_DATA_TAG,)) + varint(size)
    outer = bytes((_RESPONSE_TAG if response else _REQUEST_TAG,)) + varint(len(inner) + size)
    return b"".join((outer, inner, chunk.data))


def read_request_frame(frame: bytes) -> pb.ExecuteRequest | Chunk:
    """Return the chunk, or the message of any other frame, that a client sent.

    Raises:
        Problem: STREAM_PROTOCOL for bytes that are no ExecuteRequest.
    """
    return _read_chunk(frame, _REQUEST_TAG) or _parse(pb.ExecuteRequest, frame)


def read_response_frame(frame: bytes) -> pb.ExecuteResponse | Chunk:
    """Return the chunk, or the message of any other frame, that a server sent.

    Raises:
        Problem: STREAM_PROTOCOL for bytes that are no ExecuteResponse.
    """
    return _read_chunk(frame, _RESPONSE_TAG) or _parse(pb.ExecuteResponse, frame)


def _parse(message_class: type[_Frame], frame: bytes) -> _Frame | Chunk:
    try:
        message = message_class.FromString(frame)
    except DecodeError as err:
        raise Problem(Reason.STREAM_PROTOCOL, "the frame is no message of the schema") from err
    if message.WhichOneof("frame") == "chunk":
        chunk = message.chunk
        return Chunk(chunk.tensor_index, chunk.offset_bytes, memoryview(chunk.data))
    return message


def _read_chunk(frame: bytes, tag: int) -> Chunk | None:
    """Return the chunk if the frame has exactly the usual form, else None."""
    try:
        if frame[0] != tag:
            return None
        length, at = read_varint(frame, 1)
        if at + length != len(frame):
            return None
        index = offset = 0
        if frame[at] == _INDEX_TAG:
            index, at = read_varint(frame, at + 1)
        if frame[at] == _OFFSET_TAG:
            offset, at = read_varint(frame, at + 1)
        if frame[at] != _DATA_TAG:
            return None
        size, at = read_varint(frame, at + 1)
    except (IndexError, ValueError):
        return None
    if at + size != len(frame) or index >= 2**31 or offset >= 2**63:
        return None
    return Chunk(index, offset, memoryview(frame)[at:])
