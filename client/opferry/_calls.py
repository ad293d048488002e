"""Calls without any input or output of their own: what both clients share.

A call is prepared here (contract, bytes), then tried, as `_tries` says. The clients only move the
bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import xxhash

from opferry import errors, wire
from opferry.core.execution import ExecutionOptions, Priority
from opferry.core.limits import KIB, MIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import (
    HostTensor,
    TensorSpec,
    copy_bytes,
    data_of_array,
    spec_of_array,
    store_array,
)
from opferry.operators import OPERATORS
from opferry.operators.base import Plan
from opferry.operators.call import Call, CheckedCall, check_contract, check_limits
from opferry.v1 import operator_service_pb2 as pb

KNOWN_COUNT = 256
"""So many calls, those made last, are not checked again when only their data is new."""

UNARY_BYTES = 3 * MIB
"""Up to here a unary call is faster than a stream, measured on loopback."""

SHARED_BYTES = 64 * KIB
"""From here on memory shared with a server on this host is faster than a message, measured."""


class KnownCall:
    """A call that passed the contract, and the limits that it has passed as well."""

    def __init__(self, checked: CheckedCall) -> None:
        """Know nothing yet but that the contract holds."""
        self.checked = checked
        self._passed: LimitsConfig | None = None

    @cached_property
    def unary_request(self) -> wire.Unfilled:
        """The call as a request of the operator's own method, without data."""
        return wire.Unfilled.of(wire.unary_request(self.checked.call))

    def check_limits(self, limits: LimitsConfig) -> None:
        """Check the call against a server's limits, once.

        Raises:
            Problem: as `operators.call.check_limits`.
        """
        if self._passed is not limits:
            check_limits(self.checked, limits)
            self._passed = limits


class PreparedCall:
    """A call that passed the contract; its bytes are made when they are first needed.

    So a call over a limit of the server costs neither time nor memory.
    """

    def __init__(
        self,
        known: KnownCall,
        load: Callable[[], dict[str, memoryview]],
        *,
        checksum: bool = False,
        store: Callable[[Mapping[str, memoryview]], None] | None = None,
        copy: bool = False,
    ) -> None:
        """Prepare a call.

        Args:
            known: the call.
            load: returns the inputs' bytes by name.
            checksum: whether a digest goes with each input.
            store: writes the inputs' bytes to memory by name, without making them first.
            copy: whether the caller wants outputs of his own, which no view of shared memory is.
        """
        self.checked = known.checked
        self.check_limits = known.check_limits
        self.copy = copy
        self._known = known
        self._store = store
        self._load = load
        self._checksum = checksum

    @cached_property
    def data(self) -> Mapping[str, memoryview]:
        """The inputs' bytes by name, in the order of the call's inputs."""
        return self._load()

    def store(self, targets: Mapping[str, memoryview]) -> None:
        """Write the inputs' bytes to *targets*, by name, each of the input's size."""
        if self._store is not None and "data" not in vars(self):
            self._store(targets)
            return
        for name, target in targets.items():
            copy_bytes(self.data[name], target)

    @cached_property
    def call(self) -> Call:
        """The call, with the digests that go with it."""
        if not self._checksum:
            return self.checked.call
        digests = {name: xxhash.xxh3_64_digest(data) for name, data in self.data.items()}
        return replace(self.checked.call, digests=digests)

    def unary_request(self) -> bytes:
        """Return the call with its data as a serialised request of the operator's own method."""
        if self._checksum:
            unfilled = wire.Unfilled.of(wire.unary_request(self.call))
        else:
            unfilled = self._known.unary_request
        message_class = wire.methods[self.checked.call.operator.name].request
        return wire.joined(message_class, unfilled, self.data)


def prepare(
    name: str,
    arrays: Mapping[str, Any],
    attributes: Mapping[str, Any],
    options: ExecutionOptions,
    *,
    operator_package: str = "",
    keep_strides: bool = False,
    checksum: bool = False,
    copy: bool = False,
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
        copy: return arrays of the caller's own.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    operator = OPERATORS[name]
    given = {name: array for name, array in arrays.items() if array is not None}
    try:
        specs = {
            name: spec_of_array(name, array, keep_strides=keep_strides)
            for name, array in given.items()
        }
        parsed = operator.parse_attributes(attributes)
        known = _known(name, parsed, tuple(specs.items()), options, operator_package)
    except Problem as problem:
        raise errors.from_problem(problem) from problem

    def load() -> dict[str, memoryview]:
        return {name: data_of_array(given[name], spec) for name, spec in specs.items()}

    def store(targets: Mapping[str, memoryview]) -> None:
        for name, target in targets.items():
            store_array(given[name], specs[name], target)

    return PreparedCall(known, load, checksum=checksum, store=store, copy=copy)


@lru_cache(KNOWN_COUNT)
def _known(
    name: str,
    attributes: Any,
    specs: tuple[tuple[str, TensorSpec], ...],
    options: ExecutionOptions,
    operator_package: str,
) -> KnownCall:
    inputs = dict(specs)
    call = Call(OPERATORS[name], attributes, inputs, options, operator_package=operator_package)
    return KnownCall(check_contract(call))


def prepare_tensors(
    call: Call, tensors: Mapping[str, HostTensor], *, copy: bool = False
) -> PreparedCall:
    """Return a call with its tensors' bytes; *copy* as for `prepare`.

    Raises:
        Problem: if the call breaks the contract.
    """
    data = {name: tensors[name].data for name in call.inputs}
    return PreparedCall(KnownCall(check_contract(call)), lambda: data, copy=copy)


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
            name: given if isinstance(given, TensorSpec) else spec_of_array(name, given)
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
        prepared.check_limits(limits)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    return size_of(prepared) <= most_in_a_message(limits)


def most_in_a_message(limits: LimitsConfig) -> int:
    """Return the most bytes of inputs, and of outputs, that go in one message to a server."""
    return min(limits.unary_bytes, UNARY_BYTES)


def size_of(prepared: PreparedCall) -> int:
    """Return the bytes of the inputs or of the outputs, whichever are more."""
    return max(prepared.checked.input_bytes, prepared.checked.output_bytes)


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


def plan_of(call: Call, response: pb.PlanResponse) -> Plan:
    """Return the plan that a server answered.

    Raises:
        OpFerryError: if it is not as the schema says, or not of this call's outputs.
    """
    expected = check_contract(call).outputs
    try:
        plan = wire.plan_from_response(call, response)
        if not plan.template or {
            name: (spec.dtype, spec.shape) for name, spec in plan.outputs.items()
        } != {name: (spec.dtype, spec.shape) for name, spec in expected.items()}:
            raise Problem(Reason.STREAM_PROTOCOL, "the plan is not of this call")
    except Problem as problem:
        raise errors.unreadable(problem) from problem
    return plan


LONGEST_TIMEOUT_S = 10 * 365 * 86_400.0
"""Longer than anybody waits, and short enough for gRPC's clock."""


def clock(timeout_s: float) -> Clock:
    """Return the clock of a call.

    Raises:
        OpFerryError: a RequestError, if the timeout is no number.
    """
    if timeout_s != timeout_s:
        text = "timeout is NaN; give seconds"
        raise errors.RequestError(text, argument="timeout", given="nan")
    return Clock(min(timeout_s, LONGEST_TIMEOUT_S))


def priority_of(word: Priority | str | None) -> Priority | None:
    """Return a priority of its word.

    Raises:
        RequestError: if there is none of that word.
    """
    try:
        return None if word is None else Priority(word)
    except ValueError:
        allowed = " or ".join(repr(each.value) for each in Priority)
        raise errors.RequestError(
            f"priority is {word!r}; allowed is {allowed}, or None",
            argument="priority",
            given=str(word),
            allowed=allowed,
        ) from None
