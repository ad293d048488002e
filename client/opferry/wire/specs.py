"""Tensor specs to messages and back, and what is refused of any message before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from opferry.core.dtypes import ALLOWED, DType
from opferry.core.limits import LimitsConfig
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec, malformed
from opferry.v1 import tensor_pb2

_DTYPE_NUMBERS: Mapping[DType, tensor_pb2.DataType] = {
    DType.FLOAT32: tensor_pb2.DATA_TYPE_FLOAT32,
    DType.FLOAT16: tensor_pb2.DATA_TYPE_FLOAT16,
    DType.BFLOAT16: tensor_pb2.DATA_TYPE_BFLOAT16,
}
KNOWN_COUNT = 1024
"""The messages of so many specs, those used last, are not made again."""

_DTYPES = {int(number): dtype for dtype, number in _DTYPE_NUMBERS.items()}


def spec_message(name: str, spec: TensorSpec, digest: bytes = b"") -> tensor_pb2.TensorSpec:
    """Return a tensor's spec as its message; without a digest a shared one, not to be changed."""
    if not digest:
        return _known_message(name, spec)
    message = tensor_pb2.TensorSpec(xxh3_64=digest)
    message.MergeFrom(_known_message(name, spec))
    return message


def tensor_without_data(name: str, spec: TensorSpec, digest: bytes = b"") -> bytes:
    """Return a tensor as its serialised message, yet without data."""
    return _serialized(name, spec) if not digest else _serialize(spec_message(name, spec, digest))


@lru_cache(KNOWN_COUNT)
def _serialized(name: str, spec: TensorSpec) -> bytes:
    return _serialize(_known_message(name, spec))


def _serialize(spec: tensor_pb2.TensorSpec) -> bytes:
    return tensor_pb2.Tensor(spec=spec).SerializeToString()


@lru_cache(KNOWN_COUNT)
def _known_message(name: str, spec: TensorSpec) -> tensor_pb2.TensorSpec:
    return tensor_pb2.TensorSpec(
        name=name,
        data_type=_DTYPE_NUMBERS[spec.dtype],
        shape=spec.shape,
        strides=() if spec.strides is None else spec.strides,
        storage_offset=spec.storage_offset,
        # a storage of one element without axes: an empty list would mean "as shape"
        storage_shape=() if spec.storage_shape is None else spec.storage_shape or (1,),
        data_bytes=spec.data_bytes,
    )


def spec_from_message(
    name: str, message: tensor_pb2.TensorSpec, limits: LimitsConfig, *, sized: bool = True
) -> TensorSpec:
    """Return the spec of a message.

    Args:
        name: the tensor's name.
        message: from whatever source.
        limits: `rank_count` is checked here, the sizes by `check_call`.
        sized: whether data_bytes must be there and right.

    Raises:
        Problem: ENUM_NOT_SET, ENUM_UNKNOWN, DTYPE_NOT_ALLOWED, LIMIT_EXCEEDED or
            TENSOR_MALFORMED, naming the tensor.
    """
    number = int(message.data_type)
    if number not in _DTYPES:
        said = "is not set" if number == 0 else f"is unknown ({number})"
        raise Problem(
            Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN,
            f"data_type of {name} {said}; allowed are {ALLOWED}",
            argument=name,
            given=str(number),
            allowed=ALLOWED,
            aclnn_status=ACLNN_ERR_PARAM_INVALID,
        )
    for kind in (message.shape, message.strides, message.storage_shape):
        if len(kind) > limits.rank_count:
            raise over_limit(name, "axes", len(kind), limits.rank_count)
    if len(message.xxh3_64) not in (0, 8):
        raise malformed(name, f"has an xxh3_64 of {len(message.xxh3_64)} bytes; it has 8")
    spec = TensorSpec(
        dtype=_DTYPES[number],
        shape=tuple(message.shape),
        strides=tuple(message.strides) or None,
        storage_offset=message.storage_offset,
        storage_shape=tuple(message.storage_shape) or None,
    )
    if sized and message.data_bytes != spec.data_bytes:
        raise malformed(
            name,
            f"declares {message.data_bytes} data bytes; its storage of "
            f"{list(spec.storage_shape or spec.shape)} {spec.dtype.value} takes {spec.data_bytes}",
        )
    return spec


def over_limit(what: str, unit: str, given: int, allowed: int) -> Problem:
    """Return the problem of too many of something."""
    return Problem(
        Reason.LIMIT_EXCEEDED,
        f"{what} has {given} {unit}; the limit is {allowed}",
        argument=what,
        given=str(given),
        allowed=str(allowed),
    )


def refuse_unknown_fields(message: Message, *, deep: bool = True) -> None:
    """Refuse fields that this version of the schema does not have, by number.

    Args:
        message: any message.
        deep: whether the messages in it are looked at too.

    Raises:
        Problem: FIELD_UNKNOWN.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number = unknown[0].field_number
        raise Problem(
            Reason.FIELD_UNKNOWN,
            f"field {number} of {message.DESCRIPTOR.full_name} is unknown to this server; "
            "update the server, or leave the field out",
            argument=message.DESCRIPTOR.full_name,
            given=str(number),
        )
    if not deep:
        return
    # not ListFields: it would copy a tensor's data
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        value = getattr(message, field.name)
        if isinstance(value, Message):
            if message.HasField(field.name):
                refuse_unknown_fields(value)
        else:
            for part in value:
                refuse_unknown_fields(part)


def check_names(names: Iterable[str], package: str, limits: LimitsConfig) -> None:
    """Check the number of tensors, the length of names, and that none is there twice.

    Raises:
        Problem: LIMIT_EXCEEDED or TENSOR_MALFORMED.
    """
    listed = list(names)
    if len(listed) > limits.tensor_count:
        raise over_limit("the request", "tensors", len(listed), limits.tensor_count)
    for name in [package, *listed]:
        if len(name.encode()) > limits.name_bytes:
            raise over_limit(
                f"name {name[:20]!r}...", "bytes", len(name.encode()), limits.name_bytes
            )
    seen: set[str] = set()
    for name in listed:
        if name in seen:
            raise malformed(name, "is there twice")
        seen.add(name)
