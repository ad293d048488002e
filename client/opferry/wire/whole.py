"""Messages that carry whole tensors, and the tensors' data apart from them.

The generated code copies data into a message and out of it, and once more into the bytes of the
wire. Here it is copied once, when the bytes are made, and read as a view of them:
`field length (0a spec) 12 size payload`, as the generated code writes it. (A tensor's field in two
parts, spec and data, would be simpler: but not every parser merges them.) What has another form,
and what is small, goes to the generated parser, so that all always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from opferry.v1 import tensor_pb2
from opferry.wire.varints import read_varint, varint

READ_BY_HAND_BYTES = 128 * 1024
"""From this size on reading by hand is faster than the generated parser, measured."""

_LENGTH_DELIMITED = 2
_SPEC_TAG = tensor_pb2.Tensor.SPEC_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_DATA_TAG = tensor_pb2.Tensor.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED


class Parted(NamedTuple):
    """A message without its tensors' data, and the data."""

    rest: bytes
    """The serialised message; each tensor is there, without data."""
    data: Mapping[str, memoryview]
    """The data of each tensor that is there, by its field's name."""


class Unfilled(NamedTuple):
    """A message whose tensors are yet without data, serialised as far as it can be."""

    rest: bytes
    """The serialised message without its tensors."""
    tensors: Mapping[str, bytes]
    """The serialised tensors without data, by their fields' names."""

    @classmethod
    def of(cls, message: Message) -> Unfilled:
        """Return a message, whose tensors have no data; it is not changed."""
        rest = type(message)()
        rest.CopyFrom(message)
        tensors = {}
        for name in _tensor_fields(message.DESCRIPTOR).values():
            if rest.HasField(name):
                tensors[name] = getattr(rest, name).SerializeToString()
                rest.ClearField(name)
        return cls(rest.SerializeToString(), tensors)


def joined(
    message_class: type[Message], unfilled: Unfilled, data: Mapping[str, memoryview]
) -> bytes:
    """Return a serialised message of *message_class* whose tensors have *data*, by name."""
    tags = _tensor_tags(message_class.DESCRIPTOR)
    pieces: list[bytes | memoryview] = [unfilled.rest]
    for name, view in data.items():
        inner = unfilled.tensors[name] + bytes((_DATA_TAG,)) + varint(view.nbytes)
        pieces += [tags[name] + varint(len(inner) + view.nbytes) + inner, view]
    return b"".join(pieces)


def part(message_class: type[Message], frame: bytes) -> Parted:
    """Return a serialised message and its tensors' data, apart; the rest is not parsed.

    Raises:
        DecodeError: for bytes that are no such message, unless only parsing the rest can tell.
    """
    return _part_by_hand(message_class, frame) or part_message(message_class.FromString(frame))


def part_message(message: Message) -> Parted:
    """Return a message, serialised, and its data, which are taken out of it."""
    data = take_data(message)
    return Parted(message.SerializeToString(deterministic=True), data)


def read(message_class: type[Message], frame: bytes) -> tuple[Message, Mapping[str, memoryview]]:
    """Return a serialised message without its tensors' data, and the data by their fields' names.

    Raises:
        DecodeError: for bytes that are no such message.
    """
    parted = _part_by_hand(message_class, frame)
    if parted is not None:
        return message_class.FromString(parted.rest), parted.data
    message = message_class.FromString(frame)
    return message, take_data(message)


def take_data(message: Message) -> dict[str, memoryview]:
    """Take the tensors' data out of a message; return them by their fields' names."""
    data: dict[str, memoryview] = {}
    for name in _tensor_fields(message.DESCRIPTOR).values():
        if message.HasField(name):
            tensor = getattr(message, name)
            data[name] = memoryview(tensor.data)
            tensor.ClearField("data")
    return data


def carries_tensors(message_class: type[Message]) -> bool:
    """Return whether messages of a class have tensors with their data."""
    return bool(_tensor_fields(message_class.DESCRIPTOR))


@cache
def _tensor_fields(message: Descriptor) -> Mapping[int, str]:
    """Return the names of the fields that are tensors, by number, in the schema's order."""
    return {
        field.number: field.name
        for field in message.fields
        if field.type == FieldDescriptor.TYPE_MESSAGE
        and field.message_type is tensor_pb2.Tensor.DESCRIPTOR
    }


@cache
def _tensor_tags(message: Descriptor) -> Mapping[str, bytes]:
    return {
        name: varint(number << 3 | _LENGTH_DELIMITED)
        for number, name in _tensor_fields(message).items()
    }


def _part_by_hand(message_class: type[Message], frame: bytes) -> Parted | None:
    """Part a message without parsing it; None if it is small, or has not the usual form."""
    if len(frame) < READ_BY_HAND_BYTES:
        return None
    try:
        return _part_fields(_tensor_fields(message_class.DESCRIPTOR), frame)
    except (IndexError, ValueError):
        return None


def _part_fields(names: Mapping[int, str], frame: bytes) -> Parted:
    """Part a message field by field.

    Raises:
        ValueError: if it has not the usual form.
        IndexError: likewise.
    """
    whole, rest = memoryview(frame), bytearray()
    data: dict[str, memoryview] = {}
    present: set[str] = set()
    at = 0
    while at < len(frame):
        begin = at
        tag, at = read_varint(frame, at)
        if tag & 7 != _LENGTH_DELIMITED:
            raise ValueError("no message, bytes or text")
        length, at = read_varint(frame, at)
        end = at + length
        if end > len(frame):
            raise ValueError("the field is cut off")
        name = names.get(tag >> 3)
        if name is None:
            rest += whole[begin:end]
        else:
            spec, found = _part_tensor(whole[at:end])
            if found is not None:
                if name in data:
                    raise ValueError("the tensor has data twice")
                data[name] = found
            present.add(name)
            rest += varint(tag) + varint(len(spec)) + spec
        at = end
    none = whole[:0]
    ordered = (name for name in names.values() if name in present)
    return Parted(bytes(rest), {name: data.get(name, none) for name in ordered})


def _part_tensor(tensor: memoryview) -> tuple[memoryview, memoryview | None]:
    """Return a serialised tensor's field `spec`, empty if it is not there, and `data`'s content."""
    at = 0
    if tensor and tensor[0] == _SPEC_TAG:
        length, at = read_varint(tensor, 1)
        at += length
    if at == len(tensor):
        return tensor, None
    if tensor[at] != _DATA_TAG:
        raise ValueError("neither spec nor data")
    size, begin = read_varint(tensor, at + 1)
    if begin + size != len(tensor):
        raise ValueError("the data are not the end")
    return tensor[:at], tensor[begin:]
