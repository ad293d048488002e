"""Messages with whole tensors: parted and joined by hand as the generated code does it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from opferry import wire
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from opferry.wire import whole
from tests.support.frames import varint

CLASSES = [pb.ApplyRotaryPosEmbGradRequest, pb.ApplyRotaryPosEmbGradResponse]
DATA = st.binary(max_size=20) | st.sampled_from([127, 128, 16384]).map(bytes)


@pytest.fixture(autouse=True)
def _by_hand_whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "READ_BY_HAND_BYTES", 0)


def _expected(message_class: Any, frame: bytes) -> tuple[Any, dict[str, bytes]] | None:
    """Return the message without data, and the data, by the generated code; None: not parsed."""
    try:
        message = message_class.FromString(frame)
    except DecodeError:
        return None
    data = {}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is tensor_pb2.Tensor.DESCRIPTOR and message.HasField(field.name):
            data[field.name] = getattr(message, field.name).data
            getattr(message, field.name).ClearField("data")
    return message, data


def _assert_agreement(message_class: Any, frame: bytes) -> None:
    expected = _expected(message_class, frame)
    try:
        rest, data = wire.part(message_class, frame)
        found = message_class.FromString(rest)
    except DecodeError:
        assert expected is None, frame
        return
    assert expected is not None, frame
    assert found == expected[0], frame
    assert found.SerializeToString() == expected[0].SerializeToString(), frame
    assert {name: bytes(view) for name, view in data.items()} == expected[1], frame
    assert list(data) == list(expected[1])


@st.composite
def _tensors(draw: st.DrawFn) -> bytes:
    """Draw a serialised tensor: mostly of spec and data, or of any of both in any number."""
    fields = []
    for _ in range(draw(st.sampled_from([0, 1, 2, 2, 2, 3]))):
        tag, content = draw(
            st.tuples(st.just(0x0A), st.sampled_from([b"", b"\x10\x01", b"\x0a\x01a", b"\xff"]))
            | st.tuples(st.just(0x12), DATA)
            | st.tuples(st.just(0x1A), st.just(b"?"))
        )
        fields.append(bytes((tag,)) + draw(_length(content)) + content)
    return b"".join(fields)


def _length(content: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(
        varint,
        st.sampled_from([0] * 9 + [1, -1]).map(lambda off: max(0, len(content) + off)),
        st.sampled_from([0] * 9 + [1, 4, 10]),
    )


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    """Draw bytes that are built as such messages are, of any fields in any order and number."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.integers(1, 10))
        content = draw(_tensors() if number > 1 else st.sampled_from([b"", b"mine", b"\xff"]))
        parts.append(varint(number << 3 | 2) + draw(_length(content)) + content)
        if not draw(st.integers(0, 12)):
            parts.append(draw(st.binary(max_size=4)))
    return b"".join(parts)


@given(st.sampled_from(CLASSES), _frames())
@example(CLASSES[0], b"\x22\x02\x12\x00")  # a tensor of empty data
@example(CLASSES[0], b"\x22\x04\x12\x02ab\x22\x02\x12\x00")  # and one whose data are then empty
@example(CLASSES[0], b"\x22\x00")  # a tensor of nothing
@example(CLASSES[0], b"\x22\x03\x12\x02ab\x00")  # cut off
@example(CLASSES[1], b"\x12\x04\x12\x02ab\x0a\x00\x12\x02\x0a\x00")  # data before the spec
def test_any_bytes_are_parted_as_the_generated_code_reads_them(cls: Any, frame: bytes) -> None:
    """The same rest, the same data, the same refusals."""
    _assert_agreement(cls, frame)


@given(st.sampled_from(CLASSES), st.binary(max_size=64))
def test_so_are_bytes_of_no_form(cls: Any, frame: bytes) -> None:
    """Nothing but DecodeError is raised."""
    _assert_agreement(cls, frame)


@given(st.data(), st.sampled_from(CLASSES), st.booleans())
def test_what_is_joined_is_read_by_both(draw: st.DataObject, cls: Any, by_hand: bool) -> None:
    """The generated parser finds each tensor whole; parting gives back what was joined."""
    names = list(whole._tensor_fields(cls.DESCRIPTOR).values())
    data = draw.draw(st.dictionaries(st.sampled_from(names), DATA))
    message = cls(
        **{
            name: tensor_pb2.Tensor(spec=tensor_pb2.TensorSpec(name=name, data_bytes=len(content)))
            for name, content in data.items()
        }
    )
    views = {name: memoryview(some) for name, some in data.items()}
    frame = wire.joined(cls, wire.Unfilled.of(message), views)
    parsed = cls.FromString(frame)
    # each tensor once, for parsers that do not merge the parts of a field
    assert len(frame) == len(parsed.SerializeToString()) + sum(
        2 for some in data.values() if not some
    )
    for name, content in data.items():
        assert getattr(parsed, name).spec.name == name
        assert getattr(parsed, name).data == content
    rest, found = wire.part(cls, frame if by_hand else parsed.SerializeToString())
    assert cls.FromString(rest) == message
    assert {name: bytes(view) for name, view in found.items()} == data


def test_data_of_the_usual_forms_are_not_copied() -> None:
    """Both those of `joined` and those of the generated code are read as views of the frame."""
    content = bytes(1000)
    message = CLASSES[0](cos=tensor_pb2.Tensor(spec=tensor_pb2.TensorSpec(name="cos")))
    ours = wire.joined(CLASSES[0], wire.Unfilled.of(message), {"cos": memoryview(content)})
    message.cos.data = content
    for frame in (ours, message.SerializeToString()):
        assert wire.part(CLASSES[0], frame).data["cos"].obj is frame
