"""Which outputs a case is judged by, and the verdict on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from opferry.core.tensors import TensorSpec
from opferry.operators.base import OutputSpec
from opferry.validation.case import Case, Tolerance
from opferry.validation.compare import compare
from opferry.validation.outcome import OutputResult, OutputStatus, RunSettings


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
    results: list[OutputResult] = []
    promised = {output.name for output in case.operator.present_outputs(case.inputs)}
    for output in case.operator.outputs:
        came = outputs.get(output.name)
        if output.name not in promised:
            absent = " and ".join(name for name in output.requires if name not in case.inputs)
            if came is not None:
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
            if came is None:
                results.append(_without(output, OutputStatus.MISSING, "was not returned"))
            else:
                results.append(_judge(case, output, came, golden[output.name], settings))
    return tuple(results)


def _without(output: OutputSpec, status: OutputStatus, reason: str) -> OutputResult:
    return OutputResult(output.name, output.short_name, status, reason)


def _judge(
    case: Case,
    output: OutputSpec,
    came: NDArray[Any],
    golden: NDArray[Any],
    settings: RunSettings,
) -> OutputResult:
    like = case.inputs[output.like]
    for wanted, said in (
        (TensorSpec(like.dtype, like.shape), f"{case.operator.name} gives"),
        (case.outputs[output.name], f"row {case.row} lists"),
    ):
        if wanted is None:
            continue
        if came.shape != wanted.shape or came.dtype != wanted.dtype.numpy:
            return _without(
                output,
                OutputStatus.FAIL,
                f"was returned as {list(came.shape)} {came.dtype}; {said} {list(wanted.shape)} "
                f"{wanted.dtype.value}",
            )
    # only close takes a row's own tolerances
    own = case.tolerances[output.name] if settings.standard == "close" else Tolerance()
    comparison = compare(
        came,
        golden,
        settings.standard,
        dtype=like.dtype,
        edition=settings.edition,
        rtol=own.rtol,
        ptol=own.ptol,
        atol=own.atol,
    )
    status = OutputStatus.PASS if comparison.passed else OutputStatus.FAIL
    return OutputResult(output.name, output.short_name, status, comparison.reason, comparison)
