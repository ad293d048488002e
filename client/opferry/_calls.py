"""Calls without any input or output of their own: what both clients share.

A call is prepared here (contract, bytes), then tried, as `_tries` says. The clients only move the
bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from opferry import errors
from opferry.core.execution import ExecutionOptions
from opferry.core.limits import KIB, LimitsConfig
from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor, TensorSpec, from_array
from opferry.operators import OPERATORS
from opferry.operators.call import Call, CheckedCall, check_contract, check_limits

UNARY_BYTES = 256 * KIB
"""Up to here a unary call is faster than a stream, measured on loopback."""


@dataclass(frozen=True)
class PreparedCall:
    """A call that passed the contract, with its data."""

    checked: CheckedCall
    """The call."""
    data: Mapping[str, memoryview]
    """The inputs' bytes by name, in the order of the call's inputs."""

    @property
    def call(self) -> Call:
        """The call itself."""
        return self.checked.call


def prepare(
    name: str,
    arrays: Mapping[str, Any],
    attributes: Mapping[str, Any],
    options: ExecutionOptions,
    *,
    operator_package: str = "",
    keep_strides: bool = False,
    checksum: bool = False,
) -> PreparedCall:
    """Return the call of an operator on arrays.

    Args:
        name: the operator's CANN name.
        arrays: the inputs by name; None where an optional one is absent.
        attributes: by name, as users write them.
        options: how to execute it.
        operator_package: which operator package runs it.
        keep_strides: send views as views.
        checksum: send a digest with each input.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    operator = OPERATORS[name]
    try:
        tensors = {
            name: from_array(name, array, keep_strides=keep_strides)
            for name, array in arrays.items()
            if array is not None
        }
        call = Call(
            operator=operator,
            attributes=operator.parse_attributes(attributes),
            inputs={name: tensor.spec for name, tensor in tensors.items()},
            options=options,
            operator_package=operator_package,
            digests={
                name: xxhash.xxh3_64_digest(tensor.data)
                for name, tensor in tensors.items()
                if checksum
            },
        )
        return prepare_tensors(call, tensors)
    except Problem as problem:
        raise errors.from_problem(problem) from problem


def prepare_tensors(call: Call, tensors: Mapping[str, HostTensor]) -> PreparedCall:
    """Return a call with its tensors' bytes.

    Raises:
        Problem: if the call breaks the contract.
    """
    return PreparedCall(check_contract(call), {name: tensors[name].data for name in call.inputs})


def prepare_plan(
    name: str, inputs: Mapping[str, Any], attributes: Mapping[str, Any], operator_package: str
) -> Call:
    """Return the call to plan; inputs are arrays or specs, None where absent.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    operator = OPERATORS[name]
    try:
        specs = {
            name: given if isinstance(given, TensorSpec) else from_array(name, given).spec
            for name, given in inputs.items()
            if given is not None
        }
        call = Call(
            operator,
            operator.parse_attributes(attributes),
            specs,
            operator_package=operator_package,
        )
        check_contract(call)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    return call


def fits_unary(prepared: PreparedCall, limits: LimitsConfig) -> bool:
    """Check the call against the server's limits and return whether a unary call carries it.

    Raises:
        OpFerryError: a TooLargeError, in the words in which the server would refuse.
    """
    try:
        check_limits(prepared.checked, limits)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    size = max(prepared.checked.input_bytes, prepared.checked.output_bytes)
    return size <= min(limits.unary_bytes, UNARY_BYTES)


class Clock:
    """The time that is left for a call, over all its tries."""

    def __init__(self, timeout_s: float) -> None:
        """Start a clock of *timeout_s* seconds."""
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the seconds left, never less than 0."""
        return max(0.0, self._end_s - time.monotonic())


def rotary_grad_inputs(
    grad_query_embed: Any, grad_key_embed: Any, cos: Any, sin: Any, query: Any, key: Any
) -> dict[str, Any]:
    """Return the inputs of ApplyRotaryPosEmbGrad by name; None where absent."""
    return {
        "grad_query_embed": grad_query_embed,
        "grad_key_embed": grad_key_embed,
        "cos": cos,
        "sin": sin,
        "query": query,
        "key": key,
    }
