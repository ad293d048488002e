"""A call of an operator, and the one function that checks it, on the client and on the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from opferry.core.execution import Execution, ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators.base import Operator, Plan

ALIGNMENT_BYTES = 64
"""Where each tensor begins in the server's memory: a multiple of this, for copies and vectors."""

HOST_STEP_BYTES = 64 * 1024
"""What a request takes of the server's memory is a multiple of this: the largest page in use."""


def align(size_bytes: int, step: int = ALIGNMENT_BYTES) -> int:
    """Return the next multiple of *step*."""
    return -(-size_bytes // step) * step


def place(sizes_bytes: Iterable[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes begin, one behind the other, and where the last ends.

    Each begins at a multiple of ALIGNMENT_BYTES, and so does what would follow the last.
    """
    offsets, end = [], 0
    for size in sizes_bytes:
        offsets.append(end)
        end = align(end + size)
    return offsets, end


@dataclass(frozen=True)
class Call:
    """An operator call without its data."""

    operator: Operator
    """The operator."""
    attributes: Any
    """Its attributes, as `Operator.parse_attributes` returns them."""
    inputs: Mapping[str, TensorSpec]
    """The inputs that are present, in the order in which their data is sent."""
    options: ExecutionOptions = field(default_factory=ExecutionOptions)
    """How to execute it."""
    operator_package: str = ""
    """Which operator package runs it; empty: the server's default."""
    client: str = ""
    """Whose call it is, as the server that runs it knows; never sent."""
    digests: Mapping[str, bytes] = field(default_factory=dict)
    """The XXH3 64-bit digests (8 bytes, big-endian) of the inputs that have one."""


@dataclass(frozen=True)
class CallResult:
    """What came of a call."""

    outputs: Mapping[str, NDArray[Any]]
    """The outputs that were computed, by name, in the operator's order."""
    execution: Execution
    """Where, by what and how fast."""


@dataclass(frozen=True)
class CheckedCall:
    """A call that may be executed, and what it takes."""

    call: Call
    """The call."""
    plan: Plan | None
    """Its plan; None if the contract was not to be checked."""
    outputs: Mapping[str, TensorSpec]
    """The outputs that will come, in the operator's order."""

    @cached_property
    def input_bytes(self) -> int:
        """The size of all inputs' data."""
        return sum(spec.data_bytes for spec in self.call.inputs.values())

    @cached_property
    def output_bytes(self) -> int:
        """The size of all outputs' data."""
        return sum(spec.data_bytes for spec in self.outputs.values())

    @cached_property
    def host_bytes(self) -> int:
        """What the call takes of the server's memory: inputs and outputs, each aligned."""
        specs = (*self.call.inputs.values(), *self.outputs.values())
        return align(sum(align(spec.data_bytes) for spec in specs), HOST_STEP_BYTES)


def check_contract(call: Call) -> CheckedCall:
    """Check a call against the operator's contract, unless it says not to.

    Raises:
        Problem: the first rule that is broken; always if a tensor is not well formed.
    """
    if not call.options.poison_outputs and not call.options.exclusive:
        raise Problem(
            Reason.ATTRIBUTE_INVALID,
            "poison_outputs is off; only an exclusive request may run without the pattern in its "
            "output memory",
            argument="poison_outputs",
            given="False",
            allowed="True, or False together with exclusive",
        )
    if call.options.deterministic and call.options.repeat < 2:
        raise Problem(
            Reason.ATTRIBUTE_INVALID,
            f"deterministic compares runs; repeat is {call.options.repeat}, give at least 2",
            argument="repeat",
            given=str(call.options.repeat),
            allowed="2 or more, with deterministic",
        )
    if call.options.check:
        plan = call.operator.check(call.inputs, call.attributes)
        return CheckedCall(call, plan, plan.outputs)
    for name, spec in call.inputs.items():
        check_storage(name, spec)
    return CheckedCall(call, None, call.operator.infer_specs(call.inputs))


def check_limits(checked: CheckedCall, limits: LimitsConfig) -> None:
    """Check a call against a server's limits.

    Raises:
        Problem: TENSOR_TOO_LARGE or LIMIT_EXCEEDED, with what is given and what is allowed.
    """
    options = checked.call.options
    limits.check_repeats(options.repeat, options.warmup)
    limits.check_tensors({**checked.call.inputs, **checked.outputs})
    total_bytes = checked.host_bytes if checked.plan is None else checked.plan.total_bytes
    limits.check_request(total_bytes, checked.host_bytes)


def check_call(call: Call, limits: LimitsConfig) -> CheckedCall:
    """Check a call against the contract and then the limits; what every request passes.

    Raises:
        Problem: the first rule that is broken.
    """
    checked = check_contract(call)
    check_limits(checked, limits)
    return checked
