"""Operator calls: headers, whole requests and plan requests, to messages and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from opferry.core.dtypes import ALLOWED, DType
from opferry.core.execution import ExecutionOptions
from opferry.core.layouts import RotaryMode
from opferry.core.limits import LimitsConfig
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec, malformed
from opferry.operators import OPERATORS
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry.v1 import execution_pb2, operator_service_pb2, rotary_pb2, tensor_pb2
from opferry.wire.methods import methods

_DTYPE_NUMBERS: Mapping[DType, tensor_pb2.DataType] = {
    DType.FLOAT32: tensor_pb2.DATA_TYPE_FLOAT32,
    DType.FLOAT16: tensor_pb2.DATA_TYPE_FLOAT16,
    DType.BFLOAT16: tensor_pb2.DATA_TYPE_BFLOAT16,
}
_DTYPES = {int(number): dtype for dtype, number in _DTYPE_NUMBERS.items()}

_MODE_NUMBERS: Mapping[str, rotary_pb2.RotaryMode] = {
    RotaryMode.HALF.value: rotary_pb2.ROTARY_MODE_HALF,
    RotaryMode.INTERLEAVE.value: rotary_pb2.ROTARY_MODE_INTERLEAVE,
    RotaryMode.QUARTER.value: rotary_pb2.ROTARY_MODE_QUARTER,
}
_MODES = {int(number): mode for mode, number in _MODE_NUMBERS.items()} | {0: ""}


def _rotary_grad_message(attributes: ApplyRotaryPosEmbGradAttributes) -> Message:
    mode = _MODE_NUMBERS.get(attributes.rotary_mode)
    if mode is None or not -(2**31) <= attributes.layout < 2**31:
        name, given = (
            ("rotary_mode", attributes.rotary_mode)
            if mode is None
            else ("layout", str(attributes.layout))
        )
        raise Problem(
            Reason.ENUM_UNKNOWN,
            f"{name} {given[:40]!r} has no number in the schema and cannot be sent",
            argument=name,
            given=given[:40],
            aclnn_status=ACLNN_ERR_PARAM_INVALID,
        )
    layout: Any = attributes.layout
    return rotary_pb2.ApplyRotaryPosEmbGradAttributes(rotary_mode=mode, layout=layout)


def _rotary_grad_attributes(
    message: rotary_pb2.ApplyRotaryPosEmbGradAttributes,
) -> ApplyRotaryPosEmbGradAttributes:
    mode = _MODES.get(message.rotary_mode, str(int(message.rotary_mode)))
    return ApplyRotaryPosEmbGradAttributes(mode, int(message.layout))


_ATTRIBUTES: Mapping[str, tuple[Callable[[Any], Message], Callable[[Any], Any]]] = {
    "apply_rotary_pos_emb_grad": (_rotary_grad_message, _rotary_grad_attributes),
}
"""For each operator, by its field in the oneof: vocabulary to message, and back."""


def attributes_message(operator: Operator, attributes: Any) -> Any:
    """Return an operator's attributes as its message.

    Raises:
        Problem: ENUM_UNKNOWN for a value that the schema cannot express.
    """
    return _ATTRIBUTES[operator.python_name][0](attributes)


def spec_message(name: str, spec: TensorSpec, digest: bytes = b"") -> tensor_pb2.TensorSpec:
    """Return a tensor's spec as its message."""
    return tensor_pb2.TensorSpec(
        name=name,
        data_type=_DTYPE_NUMBERS[spec.dtype],
        shape=spec.shape,
        strides=() if spec.strides is None else spec.strides,
        storage_offset=spec.storage_offset,
        # a storage of one element without axes: an empty list would mean "as shape"
        storage_shape=() if spec.storage_shape is None else spec.storage_shape or (1,),
        data_bytes=spec.data_bytes,
        xxh3_64=digest,
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
            raise _limit(name, "axes", len(kind), limits.rank_count)
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


def _limit(what: str, unit: str, given: int, allowed: int) -> Problem:
    return Problem(
        Reason.LIMIT_EXCEEDED,
        f"{what} has {given} {unit}; the limit is {allowed}",
        argument=what,
        given=str(given),
        allowed=str(allowed),
    )


def refuse_unknown_fields(message: Message) -> None:
    """Refuse fields that this version of the schema does not have, by number.

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


def _check_names(names: Iterable[str], package: str, limits: LimitsConfig) -> None:
    listed = list(names)
    if len(listed) > limits.tensor_count:
        raise _limit("the request", "tensors", len(listed), limits.tensor_count)
    for name in [package, *listed]:
        if len(name.encode()) > limits.name_bytes:
            raise _limit(f"name {name[:20]!r}...", "bytes", len(name.encode()), limits.name_bytes)
    seen: set[str] = set()
    for name in listed:
        if name in seen:
            raise malformed(name, "is there twice")
        seen.add(name)


def _options(message: execution_pb2.ExecutionOptions) -> ExecutionOptions:
    return ExecutionOptions(
        check=not message.skip_contract_check,
        repeat=message.repeat_count or 1,
        output_digests=message.output_digests,
    )


def options_message(options: ExecutionOptions) -> execution_pb2.ExecutionOptions:
    """Return execution options as their message."""
    return execution_pb2.ExecutionOptions(
        skip_contract_check=not options.check,
        repeat_count=options.repeat,
        output_digests=options.output_digests,
    )


def header_message(call: Call) -> operator_service_pb2.ExecuteHeader:
    """Return a call as the first frame of an Execute stream."""
    return operator_service_pb2.ExecuteHeader(
        operator_package=call.operator_package,
        inputs=[
            spec_message(name, spec, call.digests.get(name, b""))
            for name, spec in call.inputs.items()
        ],
        options=options_message(call.options),
        **{call.operator.python_name: attributes_message(call.operator, call.attributes)},
    )


def plan_request(call: Call) -> operator_service_pb2.PlanRequest:
    """Return a call as a plan request."""
    return operator_service_pb2.PlanRequest(
        operator_package=call.operator_package,
        inputs=[spec_message(name, spec) for name, spec in call.inputs.items()],
        **{call.operator.python_name: attributes_message(call.operator, call.attributes)},
    )


def _operator_and_attributes(
    message: operator_service_pb2.ExecuteHeader | operator_service_pb2.PlanRequest,
) -> tuple[Operator, Any]:
    field = message.WhichOneof("attributes")
    for operator in OPERATORS.values():
        if operator.python_name == field:
            return operator, _ATTRIBUTES[field][1](getattr(message, field))
    raise Problem(
        Reason.OPERATOR_NOT_SUPPORTED,
        f"the header names no operator; set the attributes of one of {', '.join(OPERATORS)}",
        argument="attributes",
        allowed=", ".join(OPERATORS),
    )


def call_from_header(header: operator_service_pb2.ExecuteHeader, limits: LimitsConfig) -> Call:
    """Return the call of a header.

    Raises:
        Problem: for anything that is not well formed, over a limit, or unknown.
    """
    _check_names((spec.name for spec in header.inputs), header.operator_package, limits)
    refuse_unknown_fields(header)
    operator, attributes = _operator_and_attributes(header)
    return Call(
        operator=operator,
        attributes=attributes,
        inputs={spec.name: spec_from_message(spec.name, spec, limits) for spec in header.inputs},
        options=_options(header.options),
        operator_package=header.operator_package,
        digests={spec.name: spec.xxh3_64 for spec in header.inputs if spec.xxh3_64},
    )


def call_from_plan_request(request: operator_service_pb2.PlanRequest, limits: LimitsConfig) -> Call:
    """Return the call of a plan request; raises as `call_from_header` does."""
    _check_names((spec.name for spec in request.inputs), request.operator_package, limits)
    refuse_unknown_fields(request)
    operator, attributes = _operator_and_attributes(request)
    inputs = {
        spec.name: spec_from_message(spec.name, spec, limits, sized=bool(spec.data_bytes))
        for spec in request.inputs
    }
    return Call(operator, attributes, inputs, operator_package=request.operator_package)


class UnaryCall(NamedTuple):
    """A call that came whole."""

    call: Call
    """The call."""
    data: Mapping[str, bytes]
    """The inputs' data by name, of the declared sizes."""


def unary_request(call: Call, data: Mapping[str, memoryview]) -> Message:
    """Return a call with its data as the request of the operator's own method."""
    tensors = {
        name: tensor_pb2.Tensor(
            spec=spec_message(name, spec, call.digests.get(name, b"")), data=bytes(data[name])
        )
        for name, spec in call.inputs.items()
    }
    return methods[call.operator.name].request(
        operator_package=call.operator_package,
        options=options_message(call.options),
        attributes=attributes_message(call.operator, call.attributes),
        **tensors,
    )


def call_from_unary(operator: Operator, request: Any, limits: LimitsConfig) -> UnaryCall:
    """Return the call and the data of a request of an operator's own method.

    Raises:
        Problem: for anything that is not well formed, over a limit, or unknown.
    """
    present = [spec.name for spec in operator.inputs if request.HasField(spec.name)]
    _check_names(present, request.operator_package, limits)
    refuse_unknown_fields(request)
    inputs: dict[str, TensorSpec] = {}
    data: dict[str, bytes] = {}
    digests: dict[str, bytes] = {}
    for name in present:
        tensor = getattr(request, name)
        if tensor.spec.name not in ("", name):
            raise malformed(name, f"carries a tensor named {tensor.spec.name[:40]!r}")
        inputs[name] = spec_from_message(name, tensor.spec, limits)
        # Every read of .data is a copy: one read, kept.
        data[name] = tensor.data
        if len(data[name]) != tensor.spec.data_bytes:
            raise malformed(
                name, f"declares {tensor.spec.data_bytes} data bytes and has {len(data[name])}"
            )
        if tensor.spec.xxh3_64:
            digests[name] = tensor.spec.xxh3_64
    call = Call(
        operator=operator,
        attributes=_ATTRIBUTES[operator.python_name][1](request.attributes),
        inputs=inputs,
        options=_options(request.options),
        operator_package=request.operator_package,
        digests=digests,
    )
    return UnaryCall(call, data)
