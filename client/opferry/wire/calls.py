"""Operator calls: headers, whole requests and plan requests, to messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from opferry.core.execution import ExecutionOptions, Priority
from opferry.core.leases import TOKEN_BYTES, ArenaRegion
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, malformed
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry.v1 import execution_pb2, operator_service_pb2, tensor_pb2
from opferry.wire.attributes import attributes_from_message, attributes_message, operator_of
from opferry.wire.methods import methods
from opferry.wire.specs import (
    check_names,
    refuse_unknown_fields,
    spec_from_message,
    spec_message,
)

_PRIORITIES: Mapping[Priority | None, execution_pb2.Priority] = {
    None: execution_pb2.PRIORITY_UNSPECIFIED,
    Priority.INTERACTIVE: execution_pb2.PRIORITY_INTERACTIVE,
    Priority.BATCH: execution_pb2.PRIORITY_BATCH,
}


def _priority(number: int) -> Priority | None:
    """Return the priority of its number.

    Raises:
        Problem: ENUM_UNKNOWN.
    """
    for priority, known in _PRIORITIES.items():
        if number == known:
            return priority
    raise Problem(
        Reason.ENUM_UNKNOWN,
        f"options.priority is {number}; known are PRIORITY_INTERACTIVE and PRIORITY_BATCH",
        argument="options.priority",
        given=str(number),
        allowed="PRIORITY_INTERACTIVE, PRIORITY_BATCH",
    )


def options_from_message(message: execution_pb2.ExecutionOptions) -> ExecutionOptions:
    """Return the execution options of a message."""
    return ExecutionOptions(
        check=not message.skip_contract_check,
        repeat=message.repeat_count or 1,
        output_digests=message.output_digests,
        warmup=message.warmup_count,
        exclusive=message.exclusive,
        deterministic=message.deterministic,
        poison_outputs=not message.skip_output_poison,
        priority=_priority(message.priority),
    )


def options_message(options: ExecutionOptions) -> execution_pb2.ExecutionOptions:
    """Return execution options as their message."""
    return execution_pb2.ExecutionOptions(
        skip_contract_check=not options.check,
        repeat_count=options.repeat,
        output_digests=options.output_digests,
        warmup_count=options.warmup,
        exclusive=options.exclusive,
        deterministic=options.deterministic,
        skip_output_poison=not options.poison_outputs,
        priority=_PRIORITIES[options.priority],
    )


def header_message(
    call: Call, region: ArenaRegion | None = None
) -> operator_service_pb2.ExecuteHeader:
    """Return a call as the first frame of an Execute stream; with *region*, no chunks follow."""
    return operator_service_pb2.ExecuteHeader(
        operator_package=call.operator_package,
        arena=None if region is None else operator_service_pb2.SharedArena(**vars(region)),
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


def call_from_header(header: operator_service_pb2.ExecuteHeader, limits: LimitsConfig) -> Call:
    """Return the call of a header.

    Raises:
        Problem: for anything that is not well formed, over a limit, or unknown.
    """
    check_names((spec.name for spec in header.inputs), header.operator_package, limits)
    refuse_unknown_fields(header)
    operator, attributes = operator_of(header)
    return Call(
        operator=operator,
        attributes=attributes,
        inputs={spec.name: spec_from_message(spec.name, spec, limits) for spec in header.inputs},
        options=options_from_message(header.options),
        operator_package=header.operator_package,
        digests={spec.name: spec.xxh3_64 for spec in header.inputs if spec.xxh3_64},
    )


def region_from_header(header: operator_service_pb2.ExecuteHeader) -> ArenaRegion | None:
    """Return where in shared memory a header says that its tensors lie; None: chunks follow.

    Raises:
        Problem: ARENA_INVALID for a token that can be none, FIELD_UNKNOWN; the rest is checked by
            the lease.
    """
    if not header.HasField("arena"):
        return None
    arena = header.arena
    refuse_unknown_fields(arena)
    if len(arena.token) != TOKEN_BYTES:
        raise Problem(
            Reason.ARENA_INVALID,
            f"arena.token has {len(arena.token)} bytes; a lease's token has {TOKEN_BYTES}",
            argument="arena.token",
            given=f"{len(arena.token)} bytes",
            allowed=f"{TOKEN_BYTES} bytes",
        )
    return ArenaRegion(arena.token, arena.offset_bytes, arena.size_bytes)


def call_from_plan_request(request: operator_service_pb2.PlanRequest, limits: LimitsConfig) -> Call:
    """Return the call of a plan request; raises as `call_from_header` does."""
    check_names((spec.name for spec in request.inputs), request.operator_package, limits)
    refuse_unknown_fields(request)
    operator, attributes = operator_of(request)
    inputs = {
        spec.name: spec_from_message(spec.name, spec, limits, sized=bool(spec.data_bytes))
        for spec in request.inputs
    }
    return Call(operator, attributes, inputs, operator_package=request.operator_package)


def unary_request(call: Call) -> Message:
    """Return a call, yet without its data, as the request of the operator's own method."""
    return methods[call.operator.name].request(
        operator_package=call.operator_package,
        options=options_message(call.options),
        attributes=attributes_message(call.operator, call.attributes),
        **{
            name: tensor_pb2.Tensor(spec=spec_message(name, spec, call.digests.get(name, b"")))
            for name, spec in call.inputs.items()
        },
    )


def check_data(call: Call, data: Mapping[str, memoryview]) -> None:
    """Check that each input's data is as long as its spec says.

    Raises:
        Problem: TENSOR_MALFORMED, naming the tensor.
    """
    for name, spec in call.inputs.items():
        if len(data[name]) != spec.data_bytes:
            raise malformed(
                name, f"declares {spec.data_bytes} data bytes and has {len(data[name])}"
            )


def call_from_unary(operator: Operator, request: Any, limits: LimitsConfig) -> Call:
    """Return the call of a request of an operator's own method; its data is not looked at.

    Raises:
        Problem: for anything that is not well formed, over a limit, or unknown.
    """
    present = [spec.name for spec in operator.inputs if request.HasField(spec.name)]
    check_names(present, request.operator_package, limits)
    refuse_unknown_fields(request)
    inputs: dict[str, TensorSpec] = {}
    digests: dict[str, bytes] = {}
    for name in present:
        tensor = getattr(request, name)
        if tensor.spec.name not in ("", name):
            raise malformed(name, f"carries a tensor named {tensor.spec.name[:40]!r}")
        inputs[name] = spec_from_message(name, tensor.spec, limits)
        if tensor.spec.xxh3_64:
            digests[name] = tensor.spec.xxh3_64
    return Call(
        operator=operator,
        attributes=attributes_from_message(operator, request.attributes),
        inputs=inputs,
        options=options_from_message(request.options),
        operator_package=request.operator_package,
        digests=digests,
    )
