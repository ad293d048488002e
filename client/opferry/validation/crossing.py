"""Cases run by two implementations, judged by `cross_check`."""

from __future__ import annotations

from dataclasses import replace

from opferry.core.problems import Problem, Reason
from opferry.errors import from_problem
from opferry.validation._judge import verdict_of
from opferry.validation.comparison import Comparison
from opferry.validation.cross_check import CrossCheck, cross_check
from opferry.validation.outcome import CaseResult, CaseStatus, OutputResult, OutputStatus

COMPARED = (CaseStatus.PASS, CaseStatus.FAIL)
"""Results whose outputs were compared with a golden."""


def cross_checked(first: CaseResult, second: CaseResult, level: str) -> CaseResult:
    """Return the verdict on a case by the errors of a second implementation on the same inputs.

    Args:
        first: what is judged, by whatever standard it was compared with its golden.
        second: what the other implementation came to.
        level: the level of `cross_check`.
    """
    settings = replace(first.settings, standard="cross_check", edition=level)
    if first.status not in COMPARED:
        return replace(first, settings=settings)
    if second.status is CaseStatus.NOT_RUN:
        reason = f"the other implementation was not run: {second.reason}"
        return replace(
            first, settings=settings, status=second.status, reason=reason, error=second.error
        )
    if second.status not in COMPARED:
        problem = Problem(
            Reason.OPERATOR_FAILED, f"the other implementation has no result: {_said(second)}"
        )
        return _error(replace(first, settings=settings), problem)
    others = {output.name: output for output in second.outputs}
    outputs = []
    for output in first.outputs:
        other = others.get(output.name)
        if output.comparison is None or other is None or other.comparison is None:
            outputs.append(output)
            continue
        if output.golden_digest != other.golden_digest:
            problem = Problem(
                Reason.RECIPE_MISMATCH,
                f"the goldens of {output.name} differ between the two servers "
                f"({output.golden_digest.hex()} and {other.golden_digest.hex()}), so their errors "
                "cannot be compared: run both on the same numpy, or on one server with two "
                "operator packages",
                argument=output.name,
            )
            return _error(replace(first, settings=settings), problem)
        outputs.append(_output(output, other, level))
    status, reason = verdict_of(outputs)
    return replace(
        first, settings=settings, status=status, reason=reason, outputs=tuple(outputs), error=None
    )


def _said(result: CaseResult) -> str:
    """Return why a case has no result, without the codes, which its own error has."""
    return result.reason if result.error is None else result.error.message


def _error(result: CaseResult, problem: Problem) -> CaseResult:
    error = from_problem(problem, result.request_id)
    return replace(result, status=CaseStatus.ERROR, reason=str(error), error=error)


def _output(output: OutputResult, other: OutputResult, level: str) -> OutputResult:
    assert output.comparison is not None  # noqa: S101 - the caller looked
    assert output.findings is not None  # noqa: S101 - they come together
    assert other.comparison is not None  # noqa: S101 - the caller looked
    assert other.findings is not None  # noqa: S101 - they come together
    found = cross_check(output.findings.statistics, other.findings.statistics, level)
    faults = [found.reason] if found.reason else []
    for whose, comparison in (("", output.comparison), ("the other's ", other.comparison)):
        if comparison.mismatch_count:
            faults.insert(
                0,
                f"{whose}NaN or infinity stands on one side only at {comparison.mismatch_count} of "
                f"{comparison.element_count} elements, first at {comparison.first_mismatch}",
            )
    comparison = _comparison(output.comparison, found, faults)
    status = OutputStatus.FAIL if faults else OutputStatus.PASS
    return replace(output, status=status, reason=comparison.reason, comparison=comparison)


def _comparison(before: Comparison, found: CrossCheck, faults: list[str]) -> Comparison:
    return replace(
        before,
        passed=not faults,
        standard="cross_check",
        edition=found.level,
        thresholds={name: ratio.limit for name, ratio in found.ratios.items()},
        reason="; ".join(faults),
    )
