"""Goldens that a row names files for, in place of those that are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from opferry.core.tensors import TensorSpec, view_array
from opferry.validation._judge import judge_output, verdict_of
from opferry.validation.binaries import load_binary
from opferry.validation.case import Case
from opferry.validation.outcome import CaseResult, GoldenMode


def goldens_of_files(case: Case) -> Mapping[str, NDArray[Any]]:
    """Return the goldens of a case that are in files, by output."""
    found = {}
    for output in case.operator.present_outputs(case.inputs):
        if output.name in case.golden_files:
            like = case.inputs[output.like]
            spec = TensorSpec(like.dtype, like.shape)
            tensor = load_binary(case.golden_files[output.name], spec)
            found[output.name] = view_array(spec, tensor.data)
    return found


def with_golden_files(result: CaseResult) -> CaseResult:
    """Return a result whose outputs are judged by the goldens that the row has files for.

    Args:
        result: of a case; if it has such goldens and ran, with its outputs in *dumped*.
    """
    case = result.case
    if not case.golden_files or not result.outputs:
        return result
    if result.settings.golden_mode is GoldenMode.DISABLE:
        return result
    goldens = goldens_of_files(case)
    declared = {output.name: output for output in case.operator.outputs}
    outputs = tuple(
        judge_output(
            case,
            declared[output.name],
            result.dumped[output.name],
            goldens[output.name],
            result.settings,
        )
        if output.name in goldens and output.name in result.dumped
        else output
        for output in result.outputs
    )
    status, reason = verdict_of(outputs)
    return replace(result, outputs=outputs, status=status, reason=reason)
