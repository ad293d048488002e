"""Requests from strangers: what is not well formed, unknown or over a limit is refused by name."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from opferry import wire
from opferry.core.dtypes import DType
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.operators.call import Call, check_call
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from opferry.wire import refuse_unknown_fields

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")
REQUEST: Any = wire.methods[OPERATOR.name].request
LIMITS = LimitsConfig()
UNKNOWN = b"\x98\x06\x01"
"""Field 99 with the value 1."""


def _call() -> Call:
    gradient, cos = (TensorSpec(DType.FLOAT32, (3, heads, 4)) for heads in (2, 1))
    return Call(
        OPERATOR,
        OPERATOR.parse_attributes({"layout": 4}),
        {"grad_query_embed": gradient, "grad_key_embed": gradient, "cos": cos, "sin": cos},
    )


def _header() -> pb.ExecuteHeader:
    return wire.header_message(_call())


def _unary() -> Any:
    data = {name: memoryview(bytes(spec.data_bytes)) for name, spec in _call().inputs.items()}
    unfilled = wire.Unfilled.of(wire.unary_request(_call()))
    return REQUEST.FromString(wire.joined(REQUEST, unfilled, data))


def _read_unary(request: Any) -> Call:
    rest, data = wire.part(REQUEST, request.SerializeToString())
    call = wire.call_from_unary(OPERATOR, REQUEST.FromString(rest), LIMITS)
    wire.check_data(call, data)
    return call


def _refused(function: Callable[..., Any], *arguments: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        function(*arguments)
    problem = caught.value
    assert len(problem.message) < 400
    return problem


def _refused_header(header: pb.ExecuteHeader) -> Problem:
    return _refused(wire.call_from_header, header, LIMITS)


def _refused_unary(request: Any) -> Problem:
    return _refused(_read_unary, request)


def test_what_is_broken_here_is_valid() -> None:
    """The requests that all tests start from are taken."""
    assert wire.call_from_header(_header(), LIMITS) == _call()
    assert _read_unary(_unary()) == _call()
    assert wire.call_from_plan_request(wire.plan_request(_call()), LIMITS) == _call()


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("ExecuteHeader", lambda header: header),
        ("ExecutionOptions", lambda header: header.options),
        ("ApplyRotaryPosEmbGradAttributes", lambda header: header.apply_rotary_pos_emb_grad),
        ("TensorSpec", lambda header: header.inputs[3]),
    ],
)
def test_unknown_fields_of_a_header_are_refused(message: str, part: Callable[..., Any]) -> None:
    """At any depth of a header, an unknown field is refused by its number and message."""
    header = _header()
    part(header).MergeFromString(UNKNOWN)
    problem = _refused_header(pb.ExecuteHeader.FromString(header.SerializeToString()))
    assert problem.reason is Reason.FIELD_UNKNOWN
    assert problem.message.startswith(f"field 99 of opferry.v1.{message} is unknown")
    assert problem.given == "99"


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("ApplyRotaryPosEmbGradRequest", lambda request: request),
        ("ApplyRotaryPosEmbGradAttributes", lambda request: request.attributes),
        ("ExecutionOptions", lambda request: request.options),
        ("Tensor", lambda request: request.cos),
        ("TensorSpec", lambda request: request.sin.spec),
    ],
)
def test_unknown_fields_of_a_unary_request_are_refused(
    message: str, part: Callable[..., Any]
) -> None:
    """At any depth of a whole request, an unknown field is refused by its number and message."""
    request = _unary()
    part(request).MergeFromString(UNKNOWN)
    problem = _refused_unary(type(request).FromString(request.SerializeToString()))
    assert problem.message.startswith(f"field 99 of opferry.v1.{message} is unknown")


def test_unknown_fields_of_a_plan_request_are_refused() -> None:
    """A plan request is read as strictly as a header."""
    request = wire.plan_request(_call())
    request.inputs[0].MergeFromString(UNKNOWN)
    assert _refused(wire.call_from_plan_request, request, LIMITS).reason is Reason.FIELD_UNKNOWN


def test_many_unknown_fields_are_refused_as_one() -> None:
    """10,000 unknown fields are refused by the first one's number."""
    header = _header()
    header.MergeFromString(UNKNOWN * 10_000)
    assert _refused_header(header).given == "99"


def test_looking_for_unknown_fields_copies_no_data() -> None:
    """The search takes next to no memory, whatever the tensors' data take."""
    request = _unary()
    request.cos.data = bytes(32 * 2**20)
    tracemalloc.start()
    try:
        refuse_unknown_fields(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("number", [0, 99, -1])
def test_unknown_data_types_are_refused(number: int) -> None:
    """A data type that is not set or not known is refused with its number and the allowed ones."""
    header = _header()
    header.inputs[2].data_type = number
    problem = _refused_header(header)
    assert problem.reason is (Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN)
    assert problem.message.startswith("data_type of cos is ")
    assert problem.message.endswith("; allowed are float32, float16 or bfloat16")
    assert (problem.argument, problem.given) == ("cos", str(number))


@pytest.mark.parametrize("field", ["rotary_mode", "layout"])
@pytest.mark.parametrize("number", [0, 99, -1])
def test_unknown_attribute_values_are_refused_by_the_contract(field: str, number: int) -> None:
    """An attribute that is not set or not known reaches the contract, which refuses it."""
    header = _header()
    setattr(header.apply_rotary_pos_emb_grad, field, number)
    call = wire.call_from_header(header, LIMITS)
    problem = _refused(check_call, call, LIMITS)
    assert problem.reason is (Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN)
    assert (problem.argument, problem.aclnn_status) == (field, 161002)
    assert (str(number) if number else "is not set") in problem.message


def test_a_header_without_an_operator_is_refused() -> None:
    """A header whose attributes are not set names no operator."""
    header = _header()
    header.ClearField("apply_rotary_pos_emb_grad")
    problem = _refused_header(header)
    assert problem.reason is Reason.OPERATOR_NOT_SUPPORTED
    assert "ApplyRotaryPosEmbGrad" in problem.message


def test_a_tensor_given_twice_is_refused() -> None:
    """Each name may be there once."""
    header = _header()
    header.inputs.append(header.inputs[1])
    problem = _refused_header(header)
    assert problem.reason is Reason.TENSOR_MALFORMED
    assert problem.message == "grad_key_embed is there twice"


def test_too_many_tensors_are_refused() -> None:
    """10,000 tensors are refused by their number."""
    header = _header()
    header.inputs.extend([tensor_pb2.TensorSpec(name="cos")] * 10_000)
    problem = _refused_header(header)
    assert problem.reason is Reason.LIMIT_EXCEEDED
    assert problem.message == "the request has 10004 tensors; the limit is 16"


@pytest.mark.parametrize("part", ["tensor", "package"])
def test_long_names_are_refused(part: str) -> None:
    """A name of 1 MB is refused with its size, without being repeated."""
    header = _header()
    owner, field = (header.inputs[0], "name") if part == "tensor" else (header, "operator_package")
    setattr(owner, field, "x" * 2**20)
    problem = _refused_header(header)
    assert problem.reason is Reason.LIMIT_EXCEEDED
    assert "has 1048576 bytes; the limit is 128" in problem.message
    assert len(problem.message) < 100


@pytest.mark.parametrize("field", ["shape", "strides", "storage_shape"])
def test_too_many_axes_are_refused(field: str) -> None:
    """A tensor of 10,000 axes is refused by their number, in whichever list they are."""
    header = _header()
    getattr(header.inputs[3], field)[:] = [1] * 10_000
    problem = _refused_header(header)
    assert problem.message == "sin has 10000 axes; the limit is 8"


@pytest.mark.parametrize("by", [-1, 1, -96, 2**40])
def test_a_wrong_size_is_refused_before_any_data(by: int) -> None:
    """A declared size that the storage does not have is refused with both numbers."""
    header = _header()
    header.inputs[0].data_bytes += by
    problem = _refused_header(header)
    assert problem.reason is Reason.TENSOR_MALFORMED
    assert problem.message == (
        f"grad_query_embed declares {96 + by} data bytes; its storage of [3, 2, 4] float32 takes 96"
    )


@pytest.mark.parametrize("shape", [[2**31, 2**31, 2], [2**62] * 8])
def test_shapes_beyond_memory_are_refused(shape: list[int]) -> None:
    """Shapes whose size leaves 64 bits are refused, whatever size is declared."""
    header = _header()
    header.inputs[0].shape[:] = shape
    assert _refused_header(header).reason is Reason.TENSOR_MALFORMED


@pytest.mark.parametrize("check", [True, False])
def test_negative_extents_are_refused(check: bool) -> None:
    """A negative axis with a size that fits it is refused by the contract, or by the storage."""
    header = _header()
    header.options.skip_contract_check = not check
    for spec in header.inputs:
        spec.shape[:] = [-1, *spec.shape[1:]]
        spec.data_bytes = -spec.data_bytes // 3
    problem = _refused(check_call, wire.call_from_header(header, LIMITS), LIMITS)
    assert problem.argument == "grad_query_embed"
    assert problem.reason is (Reason.SHAPE_MISMATCH if check else Reason.TENSOR_MALFORMED)


@pytest.mark.parametrize("size", [1, 7, 9, 1000])
def test_digests_of_another_size_are_refused(size: int) -> None:
    """A digest has 8 bytes or is not there."""
    header = _header()
    header.inputs[1].xxh3_64 = bytes(size)
    problem = _refused_header(header)
    assert problem.message == f"grad_key_embed has an xxh3_64 of {size} bytes; it has 8"


@pytest.mark.parametrize("by", [-1, 1])
def test_data_of_another_size_is_refused(by: int) -> None:
    """Data that is one byte short or long of what is declared is refused with both sizes."""
    request = _unary()
    request.sin.data = bytes(48 + by)
    problem = _refused_unary(request)
    assert problem.reason is Reason.TENSOR_MALFORMED
    assert problem.message == f"sin declares 48 data bytes and has {48 + by}"


def test_a_tensor_under_another_name_is_refused() -> None:
    """In a whole request a tensor is named by its field; its own name may not contradict."""
    request = _unary()
    request.cos.spec.name = ""
    _read_unary(request)
    request.cos.spec.name = "sin"
    assert _refused_unary(request).message == "cos carries a tensor named 'sin'"


def test_absent_attributes_are_not_set() -> None:
    """Attributes that were left out are not taken for the defaults."""
    request = _unary()
    request.ClearField("attributes")
    assert _refused(check_call, _read_unary(request), LIMITS).reason is Reason.ENUM_NOT_SET


@pytest.mark.parametrize(
    ("mode", "layout", "argument"),
    [("HALF", 1, "rotary_mode"), ("", 1, "rotary_mode"), ("half", 2**31, "layout")],
)
def test_values_that_the_schema_cannot_say_are_refused(
    mode: str, layout: int, argument: str
) -> None:
    """An attribute without a number in the schema is refused before anything is sent."""
    call = dataclasses.replace(_call(), attributes=ApplyRotaryPosEmbGradAttributes(mode, layout))
    problem = _refused(wire.header_message, call)
    assert (problem.reason, problem.argument) == (Reason.ENUM_UNKNOWN, argument)
    assert "has no number in the schema" in problem.message


@pytest.mark.parametrize("repeat", [-1, 1001])
def test_repeats_of_a_request_are_limited(repeat: int) -> None:
    """A count of runs below 1 or over the limit is refused; 0 means once."""
    header = _header()
    assert wire.call_from_header(header, LIMITS).options.repeat == 1
    header.options.repeat_count = repeat
    call = wire.call_from_header(header, LIMITS)
    assert _refused(check_call, call, LIMITS).message.startswith(f"repeat is {repeat};")
