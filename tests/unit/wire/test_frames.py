"""Frames of the stream: the fast reader and writer of chunks agree with the generated code."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from opferry.wire import (
    CHUNK_BYTES,
    Chunk,
    chunk_bytes,
    chunk_frame,
    read_request_frame,
    read_response_frame,
)
from tests.support.frames import assert_agreement, varint

EXAMPLES = int(os.environ.get("OPFERRY_FUZZ_EXAMPLES", "1000"))
"""Examples of each fuzz test; set the variable for a longer run."""

INDEXES = st.sampled_from([0, 1, 127, 128, 2**31 - 1]) | st.integers(0, 2**31 - 1)
OFFSETS = st.sampled_from([0, 1, 2**21, 2**31, 2**32, 2**63 - 1]) | st.integers(0, 2**63 - 1)
DATA = st.binary(max_size=40) | st.sampled_from([127, 128, 16383, 16384]).map(bytes)


VARINTS = st.builds(
    varint,
    st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1, 2**64, 2**70])
    | st.integers(0, 300),
    st.integers(0, 11),
)
TAGS = st.sampled_from([0x08, 0x10, 0x1A, 0x0A, 0x12, 0x22, 0x0B, 0x0C, 0x00, 0x09, 0x0D, 0x0F])


@st.composite
def _sized(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a length, mostly the right one, perhaps padded, and the content behind it."""
    length = len(content) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 2**31, 2**32]))
    return varint(max(0, length), draw(st.sampled_from([0, 0, 0, 1, 4, 9, 10]))) + content


@st.composite
def _almost_frames(draw: st.DrawFn) -> bytes:
    """Draw bytes that are built as frames are, but of any fields in any order and number."""
    parts = []
    for _ in range(draw(st.integers(0, 2))):
        fields = []
        for _ in range(draw(st.integers(0, 4))):
            tag = draw(TAGS)
            if tag in (0x1A, 0x0A, 0x12, 0x22):
                body = draw(_sized(draw(st.binary(max_size=8))))
            else:
                body = draw(VARINTS)
            fields.append(varint(tag, draw(st.sampled_from([0, 0, 0, 1, 5]))) + body)
        parts.append(bytes([draw(st.sampled_from([0x12, 0x1A, 0x0A]))]))
        parts.append(draw(_sized(b"".join(fields))))
    return b"".join(parts)


@st.composite
def _mutated_frames(draw: st.DrawFn) -> bytes:
    """Draw a chunk frame of which bytes are changed, cut off, doubled or put in."""
    chunk = Chunk(draw(INDEXES), draw(OFFSETS), memoryview(draw(st.binary(max_size=20))))
    frame = bytearray(chunk_frame(chunk, response=draw(st.booleans())))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frame)))
        cut = draw(st.integers(0, 3))
        frame[at : at + cut] = draw(st.binary(max_size=3))
    return bytes(frame[: draw(st.integers(0, len(frame)))]) if draw(st.booleans()) else bytes(frame)


@given(INDEXES, OFFSETS, DATA)
def test_frames_are_serialised_as_the_generated_code_does(
    index: int, offset: int, data: bytes
) -> None:
    """The bytes of a chunk frame are those of the generated message, in both directions."""
    chunk = tensor_pb2.TensorChunk(tensor_index=index, offset_bytes=offset, data=data)
    fast = Chunk(index, offset, memoryview(data))
    assert chunk_frame(fast) == pb.ExecuteRequest(chunk=chunk).SerializeToString()
    assert chunk_frame(fast, response=True) == pb.ExecuteResponse(chunk=chunk).SerializeToString()


@given(INDEXES, OFFSETS, DATA)
def test_chunks_come_back(index: int, offset: int, data: bytes) -> None:
    """A chunk that was written is read the same, and the generated parser agrees."""
    chunk = Chunk(index, offset, memoryview(data))
    assert read_request_frame(chunk_frame(chunk)) == chunk
    assert read_response_frame(chunk_frame(chunk, response=True)) == chunk
    assert_agreement(chunk_frame(chunk))
    assert_agreement(chunk_frame(chunk, response=True))


@settings(max_examples=EXAMPLES)
@given(_mutated_frames())
def test_the_readers_agree_on_damaged_frames(frame: bytes) -> None:
    """A damaged frame is refused by both readers, or read the same by both."""
    assert_agreement(frame)


@settings(max_examples=EXAMPLES)
@example(frame=b"\x1a\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00\x1a\x00")
@example(frame=b"\x12\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00\x1a\x00")
@given(_almost_frames())
@example(b"\x12\x00")
@example(b"\x12\x06\x08\x01\x08\x02\x1a\x00")
@example(b"\x12\x04\x1a\x00\x1a\x00")
@example(b"\x12\x02\x1a\x00\x12\x02\x08\x05")
@example(b"\x92\x00\x02\x1a\x00")
@example(b"\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x12\x09\x08\x80\x80\x80\x80\x08\x1a\x01x")
@example(b"\x12\x0e\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x01x")
def test_the_readers_agree_on_frames_of_other_forms(frame: bytes) -> None:
    """Repeated, missing, unknown and oddly encoded fields are read alike by both readers."""
    assert_agreement(frame)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=64))
def test_the_readers_agree_on_any_bytes(frame: bytes) -> None:
    """Any bytes are refused by both readers, or read the same by both."""
    assert_agreement(frame)


def test_a_chunk_is_read_without_a_copy() -> None:
    """The payload of a chunk is a view of the bytes that were received."""
    frame = chunk_frame(Chunk(3, 2**21, memoryview(bytes(100))))
    chunk = read_request_frame(frame)
    assert isinstance(chunk, Chunk)
    assert chunk.data.obj is frame


def test_other_frames_are_messages() -> None:
    """Headers and progress come as messages, an empty frame as one without content."""
    request = pb.ExecuteRequest(header=pb.ExecuteHeader(operator_package="p"))
    assert read_request_frame(request.SerializeToString()) == request
    progress = pb.ExecuteResponse(progress=pb.ExecuteProgress(position=3))
    assert read_response_frame(progress.SerializeToString()) == progress
    assert read_request_frame(b"") == pb.ExecuteRequest()


@pytest.mark.parametrize("frame", [b"\x12\x05\x1a", b"\xff" * 20, b"\x0a\x03\x0a\x01\xff"])
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    """Bytes that are no message of the schema are a fault of the stream."""
    with pytest.raises(Problem, match="no message of the schema") as caught:
        read_request_frame(frame)
    assert caught.value.reason is Reason.STREAM_PROTOCOL


@pytest.mark.parametrize("message_bytes", [1, 100, 2**20, 4 * 2**20, 2**40])
def test_chunks_fit_the_servers_messages(message_bytes: int) -> None:
    """A chunk of the size for a server's limits fits its messages, with any index and offset."""
    size = chunk_bytes(LimitsConfig(message_bytes=message_bytes))
    frame = chunk_frame(Chunk(2**31 - 1, 2**63 - 1, memoryview(bytes(size))))
    assert 1 <= size <= CHUNK_BYTES
    assert len(frame) <= message_bytes or size == 1
