"""Validation as a user asks for it, turned into a session: what both clients share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from opferry import errors
from opferry._validating import ValidateSession
from opferry.core.execution import ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, TensorSpec, from_array
from opferry.operators import operator_named
from opferry.validation.case import Case, CaseFile, Tolerance
from opferry.validation.outcome import (
    CaseResult,
    CaseStatus,
    GoldenMode,
    InputSource,
    RunSettings,
)
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import Recipe
from opferry.validation.requests import ValidationSettings


def session(
    cases: Iterable[Case] | CaseFile,
    limits: LimitsConfig,
    options: ExecutionOptions,
    *,
    seed: int,
    standard: str,
    edition: str,
    golden_mode: GoldenMode,
    operator_package: str,
    inputs: InputSource,
    worst_count: int,
    failing_slices: bool,
    dump_outputs: bool,
    dump_goldens: bool,
    dump_on_fail: bool,
    batch_consistency: bool,
) -> ValidateSession:
    """Return the session of a run; the words are those of `Client.validate_cases`.

    Raises:
        OpFerryError: a RequestError for a word that is not served.
    """
    try:
        golden_mode, inputs = GoldenMode(golden_mode), InputSource(inputs)
    except ValueError as error:
        words = ", ".join([mode.value for mode in GoldenMode] + [way.value for way in InputSource])
        problem = Problem(Reason.ATTRIBUTE_INVALID, f"{error}; the words are {words}")
        raise errors.from_problem(problem) from error
    if isinstance(cases, CaseFile):
        cases = cases.cases
    run = RunSettings(
        seed=seed,
        options=options,
        standard=standard,
        edition=edition,
        golden_mode=golden_mode,
        operator_package=operator_package,
        inputs=inputs,
        batch_consistency=batch_consistency,
    )
    settings = ValidationSettings(
        options=options,
        operator_package=operator_package,
        standard=standard,
        edition=edition,
        golden_mode=golden_mode,
        worst_count=worst_count,
        failing_slices=failing_slices,
        dump_outputs=dump_outputs,
        dump_goldens=dump_goldens,
        dump_on_fail=dump_on_fail,
    )
    try:
        settings.check()
        limits.check_repeats(options.repeat, options.warmup)
    except Problem as problem:
        raise errors.from_problem(problem) from problem
    return ValidateSession(cases, run, settings, limits)


def case_of(
    operator_name: str,
    inputs: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    name: str,
    tolerances: Mapping[str, Tolerance] | None,
) -> Case:
    """Return one case of arrays and recipes, as `Client.validate` takes them.

    Raises:
        OpFerryError: a RequestError for an operator, an attribute or an input that is not served.
    """
    try:
        operator = operator_named(operator_name)
        present = {key: value for key, value in inputs.items() if value is not None}
        operator.check_present(present)
        given = {key: _given(key, value, name) for key, value in operator.ordered(present).items()}
        return Case(
            row=1,
            name=name,
            operator=operator,
            attributes=operator.parse_attributes(attributes or {}),
            inputs={key: value.spec for key, value in given.items()},
            ranges={key: ValueRange() for key in given},
            outputs={output.name: None for output in operator.present_outputs(given)},
            tolerances={
                output.name: (tolerances or {}).get(output.name, Tolerance())
                for output in operator.outputs
            },
            absolute_precision=None,
            normal_distribution=False,
            is_enabled=True,
            remark="",
            columns={},
            given=given,
        )
    except Problem as problem:
        raise errors.from_problem(problem) from problem


def _given(name: str, value: Any, case_name: str) -> HostTensor | Recipe:
    if isinstance(value, HostTensor):
        return value
    if isinstance(value, Recipe):
        own = value.case_name or case_name
        return replace(value, input_name=name, case_name=own)
    if isinstance(value, TensorSpec):
        return Recipe(value, case_name=case_name, input_name=name)
    return from_array(name, value)


def judged(result: CaseResult) -> CaseResult:
    """Return the result of one case that was judged.

    Raises:
        OpFerryError: what kept it from being judged.
    """
    if result.error is not None:
        raise result.error
    if result.status is CaseStatus.NOT_RUN:
        problem = Problem(Reason.SERVER_DEFECT, result.reason)
        raise errors.from_problem(problem)
    return result
