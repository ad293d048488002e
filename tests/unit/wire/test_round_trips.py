"""Whatever the vocabulary can say survives the messages and comes back the same."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from opferry import wire
from opferry.core.dtypes import DType
from opferry.core.execution import (
    Execution,
    ExecutionOptions,
    OperatorPackage,
    ServerInfo,
    Timings,
    WorkerInfo,
)
from opferry.core.limits import LimitsConfig
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS, operator_named
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.operators.base import Plan
from opferry.operators.call import Call
from opferry.v1 import execution_pb2, operator_service_pb2

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")
REQUEST: Any = wire.methods[OPERATOR.name].request
LIMITS = LimitsConfig()
TEXT = st.text(max_size=20)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
NAMES = [spec.name for spec in OPERATOR.inputs]

SHAPES = st.lists(st.integers(-2, 100) | st.integers(2**31, 2**40), min_size=1, max_size=8)


def _small_enough(spec: TensorSpec) -> bool:
    return abs(spec.data_bytes) < 2**63


SPECS = st.builds(
    TensorSpec,
    st.sampled_from(DType),
    st.lists(st.integers(-2, 2**40), max_size=8).map(tuple),
    st.none() | SHAPES.map(tuple),
    st.integers(-5, 2**40),
    st.none() | SHAPES.map(tuple),
).filter(_small_enough)
"""Specs in the wire's range, well formed or not."""

ATTRIBUTES = st.builds(
    ApplyRotaryPosEmbGradAttributes,
    st.sampled_from(["half", "interleave", "quarter"]),
    st.integers(-(2**31), 2**31 - 1),
)
OPTIONS = st.builds(
    ExecutionOptions,
    check=st.booleans(),
    repeat=st.integers(1, 2**31 - 1),
    output_digests=st.booleans(),
    warmup=INT32,
    exclusive=st.booleans(),
    deterministic=st.booleans(),
    poison_outputs=st.booleans(),
)


@st.composite
def _calls(draw: st.DrawFn, names: st.SearchStrategy[str], specs: Any = SPECS) -> Call:
    inputs = draw(st.dictionaries(names, specs, max_size=6))
    digested = [name for name in inputs if draw(st.booleans())]
    return Call(
        operator=OPERATOR,
        attributes=draw(ATTRIBUTES),
        inputs=inputs,
        options=draw(OPTIONS),
        operator_package=draw(TEXT),
        digests={name: draw(st.binary(min_size=8, max_size=8)) for name in digested},
    )


@given(_calls(st.text(max_size=30)))
def test_calls_survive_the_header(call: Call) -> None:
    """A call comes back from a header's bytes the same, its inputs in their order."""
    data = wire.header_message(call).SerializeToString()
    header = operator_service_pb2.ExecuteHeader.FromString(data)
    back = wire.call_from_header(header, LIMITS)
    assert back == call
    assert list(back.inputs) == list(call.inputs)


@given(_calls(st.text(max_size=30)), st.booleans())
def test_calls_survive_a_plan_request(call: Call, sized: bool) -> None:
    """A plan request keeps all but options and digests, with or without data_bytes."""
    request = wire.plan_request(call)
    if not sized:
        for spec in request.inputs:
            spec.ClearField("data_bytes")
    data = request.SerializeToString()
    back = wire.call_from_plan_request(operator_service_pb2.PlanRequest.FromString(data), LIMITS)
    assert back == dataclasses.replace(call, options=ExecutionOptions(), digests={})


SMALL_SPECS = st.builds(
    TensorSpec,
    st.sampled_from(DType),
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    st.integers(0, 5),
    st.none() | st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
)


@given(_calls(st.sampled_from(NAMES), SMALL_SPECS), st.data())
def test_calls_survive_the_unary_request(call: Call, draw: st.DataObject) -> None:
    """A whole request gives back call and data; its inputs come in the operator's order."""
    data = {
        name: draw.draw(st.binary(min_size=spec.data_bytes, max_size=spec.data_bytes))
        for name, spec in call.inputs.items()
    }
    views = {name: memoryview(content) for name, content in data.items()}
    raw = wire.joined(REQUEST, wire.Unfilled.of(wire.unary_request(call)), views)
    rest, found = wire.part(REQUEST, raw)
    back = wire.call_from_unary(OPERATOR, REQUEST.FromString(rest), LIMITS)
    wire.check_data(back, found)
    assert (back, found) == (call, data)
    assert list(back.inputs) == [name for name in NAMES if name in data]


def test_a_storage_without_axes_is_sent_as_one_element() -> None:
    """A storage shape of no axes, one element, is not taken for no storage shape."""
    spec = TensorSpec(DType.FLOAT32, (3,), (0,), 0, ())
    back = wire.spec_from_message("cos", wire.spec_message("cos", spec), LIMITS)
    assert (back.storage_count, back.data_bytes) == (1, 4)
    assert (back.shape, back.strides) == ((3,), (0,))


EXECUTIONS = st.builds(
    Execution,
    request_id=TEXT,
    worker=TEXT,
    device=TEXT,
    backend=TEXT,
    soc_name=TEXT,
    cann_version=TEXT,
    operator_package=st.builds(OperatorPackage, TEXT, TEXT, TEXT),
    real_device=st.booleans(),
    timings=st.builds(
        Timings,
        queue_ns=INT64,
        upload_ns=INT64,
        host_to_device_ns=INT64,
        stage_one_ns=INT64,
        kernel_ns=st.lists(INT64, max_size=4).map(tuple),
        device_to_host_ns=INT64,
        download_ns=INT64,
    ),
    upload_bytes=INT64,
    download_bytes=INT64,
    shared_memory=st.booleans(),
)


@given(EXECUTIONS)
def test_executions_survive(execution: Execution) -> None:
    """Where, by what and how fast a request ran comes back in every field."""
    data = wire.execution_message(execution).SerializeToString()
    assert wire.execution_from_message(execution_pb2.Execution.FromString(data)) == execution


LIMIT_NAMES = list(operator_service_pb2.ServerLimits.DESCRIPTOR.fields_by_name)
ALL_LIMITS = st.fixed_dictionaries(
    {name: st.integers(0 if name == "idle_memory_bytes" else 1, 2**63 - 1) for name in LIMIT_NAMES}
).map(lambda limits: LimitsConfig(**limits))

SERVERS = st.builds(
    ServerInfo,
    opferry_version=TEXT,
    backend=TEXT,
    real_device=st.booleans(),
    serving=st.booleans(),
    operators=st.lists(TEXT, max_size=3).map(tuple),
    operator_packages=st.lists(st.builds(OperatorPackage, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    workers=st.lists(
        st.builds(WorkerInfo, TEXT, TEXT, st.booleans(), INT32, INT32), max_size=3
    ).map(tuple),
    limits=ALL_LIMITS,
    versions=st.dictionaries(TEXT, TEXT, max_size=3),
    reference_kernel=TEXT,
    lease_socket=TEXT,
)


@given(SERVERS)
def test_server_descriptions_survive(info: ServerInfo) -> None:
    """What a server says of itself comes back in every field, its limits too."""
    data = wire.server_info_message(info).SerializeToString()
    message = operator_service_pb2.GetServerInfoResponse.FromString(data)
    assert wire.server_info_from_message(message) == info


def test_limits_that_a_server_does_not_name_are_the_defaults() -> None:
    """A server that says nothing of a limit is taken to have the usual one."""
    message = operator_service_pb2.GetServerInfoResponse()
    assert wire.server_info_from_message(message).limits == LimitsConfig()
    message.limits.tensor_bytes = 7
    assert wire.server_info_from_message(message).limits == LimitsConfig(tensor_bytes=7)


def test_every_limit_is_in_the_schema_and_0_only_where_it_can_be_told() -> None:
    """Both sides know the same limits; one that may be 0 is optional, so that 0 is not "unset"."""
    described = operator_service_pb2.ServerLimits.DESCRIPTOR.fields_by_name
    least = {field.name: field.metadata["least"] for field in dataclasses.fields(LimitsConfig)}
    assert set(least) == set(described)
    for name, field in described.items():
        assert field.has_presence == (least[name] == 0), name


@given(
    outputs=st.dictionaries(TEXT, SPECS, max_size=4),
    axes=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    template=st.sampled_from(["A", "AB", "BAB"]),
    key=INT32,
    workspace=st.integers(0, 2**60),
    call=_calls(st.text(max_size=30)),
)
def test_plans_survive(
    outputs: dict[str, TensorSpec],
    axes: tuple[int, ...],
    template: str,
    key: int,
    workspace: int,
    call: Call,
) -> None:
    """A plan comes back the same to the caller who knows the call, with its total in the reply."""
    plan = Plan(OPERATOR, call.attributes, call.inputs, outputs, axes, template, key, workspace)
    assume(abs(plan.total_bytes) < 2**63)
    data = wire.plan_response(plan, "request-1").SerializeToString()
    response = operator_service_pb2.PlanResponse.FromString(data)
    assert wire.plan_from_response(call, response) == plan
    assert (response.total_bytes, response.request_id) == (plan.total_bytes, "request-1")


def test_every_method_of_the_service_is_known() -> None:
    """Paths and kinds come from the schema; each operator has its own unary method."""
    assert {name: method.streaming for name, method in wire.methods.items()} == {
        "Execute": True,
        "ExecuteShared": False,
        "ExecuteMany": True,
        "Validate": True,
        "ApplyRotaryPosEmbGrad": False,
        "ApplyRotaryPosEmb": False,
        "Plan": False,
        "GetServerInfo": False,
        "GetErrorText": False,
    }
    for message, kind in (
        (operator_service_pb2.ManyCall, "request"),
        (operator_service_pb2.ManyResult, "response"),
    ):
        fields = message.DESCRIPTOR.oneofs_by_name[kind].fields
        assert {field.name: field.message_type.full_name for field in fields} == {
            operator.python_name: getattr(wire.methods[name], kind).DESCRIPTOR.full_name
            for name, operator in OPERATORS.items()
        }
    plan = wire.methods["Plan"]
    assert plan.path == f"/{wire.SERVICE_NAME}/Plan" == "/opferry.v1.OperatorService/Plan"
    assert plan.request is operator_service_pb2.PlanRequest
    assert plan.response is operator_service_pb2.PlanResponse
