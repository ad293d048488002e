"""Which outputs a case is judged by, and the verdict on each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.tensors import TensorSpec
from opferry.operators.base import OutputSpec
from opferry.validation.case import Case
from opferry.validation.outcome import (
    CaseStatus,
    GoldenMode,
    OutputResult,
    OutputStatus,
    RunSettings,
)
from opferry.validation.requests import JudgedOutput


def judge_outputs(
    case: Case,
    outputs: Mapping[str, NDArray[Any]],
    golden: Mapping[str, NDArray[Any]],
    settings: RunSettings,
) -> tuple[OutputResult, ...]:
    """Judge the outputs that a case lists, and any that came though it must not.

    Args:
        case: the case; its inputs decide which outputs were to come.
        outputs: what came, by name.
        golden: what was to come, by name.
        settings: the settings of the run.
    """

    def judge(output: OutputSpec) -> OutputResult:
        disabled = settings.golden_mode is GoldenMode.DISABLE
        wanted = None if disabled else golden[output.name]
        return judge_output(case, output, outputs[output.name], wanted, settings)

    return results_of(case, outputs, judge)


def results_of(
    case: Case, came: Collection[str], judge: Callable[[OutputSpec], OutputResult]
) -> tuple[OutputResult, ...]:
    """Return the verdicts on the outputs that a case lists, and on any that must not have come.

    Args:
        case: the case; its inputs decide which outputs were to come.
        came: the names of those that came.
        judge: returns the verdict on one that came, was to come, and is listed.
    """
    results: list[OutputResult] = []
    promised = {output.name for output in case.operator.present_outputs(case.inputs)}
    for output in case.operator.outputs:
        if output.name not in promised:
            absent = " and ".join(name for name in output.requires if name not in case.inputs)
            if output.name in came:
                results.append(
                    _without(output, OutputStatus.FAIL, f"was returned though {absent} is absent")
                )
            elif output.name in case.outputs:
                results.append(
                    _without(
                        output, OutputStatus.SUPPRESSED, f"not computed because {absent} is absent"
                    )
                )
        elif output.name in case.outputs:
            if output.name in came:
                results.append(judge(output))
            else:
                results.append(_without(output, OutputStatus.MISSING, "was not returned"))
    return tuple(results)


def verdict_of(outputs: Collection[OutputResult]) -> tuple[CaseStatus, str]:
    """Return the verdict on a case and, if it is not a PASS, the reason.

    Args:
        outputs: the verdicts on its outputs.
    """
    faults = [
        f"{output.name}: {output.reason}"
        for output in outputs
        if output.status in (OutputStatus.FAIL, OutputStatus.MISSING)
    ]
    if not faults and any(output.status is OutputStatus.NOT_COMPARED for output in outputs):
        return CaseStatus.EXECUTED, "nothing was compared: there was to be no golden"
    if not any(output.status is OutputStatus.PASS for output in outputs) and not faults:
        faults.append("none of the outputs that the row lists is computed: nothing was compared")
    return CaseStatus.FAIL if faults else CaseStatus.PASS, "; ".join(faults)


def judged_result(case: Case, output: OutputSpec, judged: JudgedOutput) -> OutputResult:
    """Return the verdict on an output that was compared, or was not to be.

    Args:
        case: the case.
        output: the output.
        judged: what was found of it.
    """
    fault = listed_otherwise(case, output)
    if fault:
        return _without(output, OutputStatus.FAIL, fault)
    comparison, status = judged.comparison, OutputStatus.NOT_COMPARED
    if comparison is not None:
        status = OutputStatus.PASS if comparison.passed else OutputStatus.FAIL
    return OutputResult(
        output.name,
        output.short_name,
        status,
        "" if comparison is None else comparison.reason,
        comparison,
        judged.findings,
        judged.digest,
        judged.golden_digest,
    )


def listed_otherwise(case: Case, output: OutputSpec) -> str:
    """Return what is wrong with an output of the right shape and dtype that a row lists otherwise.

    Args:
        case: the case.
        output: the output.
    """
    given, listed = case.inputs[output.like], case.outputs[output.name]
    if listed is None or (listed.shape, listed.dtype) == (given.shape, given.dtype):
        return ""
    return _said_otherwise(given, f"row {case.row} lists", listed)


def _said_otherwise(came: TensorSpec, said: str, wanted: TensorSpec) -> str:
    return (
        f"was returned as {list(came.shape)} {came.dtype.value}; {said} {list(wanted.shape)} "
        f"{wanted.dtype.value}"
    )


def _without(output: OutputSpec, status: OutputStatus, reason: str) -> OutputResult:
    return OutputResult(output.name, output.short_name, status, reason)


def judge_output(
    case: Case,
    output: OutputSpec,
    came: NDArray[Any],
    golden: NDArray[Any] | None,
    settings: RunSettings,
) -> OutputResult:
    """Return the verdict on an output.

    Args:
        case: the case.
        output: the output.
        came: what came.
        golden: what was to come; None if nothing is to be compared.
        settings: the settings of the run.
    """
    like = case.inputs[output.like]
    if came.shape != like.shape or came.dtype != like.dtype.numpy:
        given = f"{list(came.shape)} {came.dtype}"
        wanted = f"{list(like.shape)} {like.dtype.value}"
        reason = f"was returned as {given}; {case.operator.name} gives {wanted}"
        return _without(output, OutputStatus.FAIL, reason)
    judged = JudgedOutput.of(
        output.name,
        np.ascontiguousarray(came),
        golden,
        like.dtype,
        settings.standard,
        settings.edition,
        case.tolerances[output.name],
    )
    return judged_result(case, output, judged)
