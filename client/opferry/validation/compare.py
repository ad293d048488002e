"""Whether an output agrees with its golden, by one of the standards of `STANDARDS`.

With a the output and g the golden, over every element:

- mixed: passes if at least 99 % of the elements have |a-g| <= atol + rtol*|g|, and the largest
  |a-g| is at most the dtype's floor or 32 units in the last place of g there.
- stat_rel_err: passes if mean(r) < t and max(r) < 10 t, where r = |a-g| / (|g| + 1e-7).
- close: passes if the share of elements with |a-g| > atol + rtol*|g| is at most ptol.
- binary: passes if every element has the bits of g rounded to the output's dtype.

Under every standard, NaN in both is equal and passes, so is the same infinity in both; NaN or
infinity on one side only fails the output. Infinities are compared after rounding the golden to the
output's dtype. Errors, their mean and their maximum count the elements that are finite in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.validation._scan import FinitePairs, Scan, scan
from opferry.validation.comparison import Comparison, Element
from opferry.validation.rounding import ulp
from opferry.validation.standards import (
    CLOSE_ATOL,
    CLOSE_RTOL,
    EDITIONS,
    MAX_OVER_MEAN,
    MAX_ULPS,
    MEAN_REL_ERROR,
    MIN_SHARE,
    MIXED,
    check_standard,
)

Array = NDArray[Any]


def compare(
    actual: Array,
    golden: Array,
    standard: str = "mixed",
    *,
    dtype: DType,
    edition: str = EDITIONS[0],
    rtol: float | None = None,
    ptol: float | None = None,
    atol: float | None = None,
) -> Comparison:
    """Judge an output by its golden.

    Args:
        actual: the output; its dtype is *dtype*, any shape with at least one element.
        golden: the same shape; of *dtype*, or float64 and unrounded.
        standard: one of `STANDARDS`.
        dtype: the output's dtype, which chooses the thresholds.
        edition: one of `EDITIONS`, for `mixed`.
        rtol: for `close` in place of the default.
        ptol: the share of elements that may miss, likewise.
        atol: likewise.

    Raises:
        Problem: ATTRIBUTE_INVALID for a word or threshold that the standard does not take;
            SHAPE_MISMATCH or DTYPE_NOT_ALLOWED if the arrays do not belong together.
    """
    check_standard(standard, edition, rtol=rtol, ptol=ptol, atol=atol)
    _check_arrays(actual, golden, dtype)
    pair = _Pair(actual, golden, dtype)
    if standard == "mixed":
        return _mixed(pair, edition)
    if standard == "stat_rel_err":
        return _stat_rel_err(pair)
    if standard == "close":
        default = CLOSE_RTOL[dtype]
        return _close(
            pair,
            default if rtol is None else rtol,
            default if ptol is None else ptol,
            CLOSE_ATOL if atol is None else atol,
        )
    return _binary(pair)


@dataclass(frozen=True)
class _Pair:
    actual: Array
    golden: Array
    dtype: DType

    def element(self, position: int | None) -> Element | None:
        """Return the element at a position in row-major order."""
        if position is None:
            return None
        index = tuple(int(i) for i in np.unravel_index(position, self.actual.shape))
        return Element(index, float(self.actual[index]), float(self.golden[index]))

    def judged(
        self, standard: str, found: Scan, thresholds: Mapping[str, float], faults: Sequence[str]
    ) -> Comparison:
        """Return the comparison; it passed if there are neither faults nor mismatches."""
        mismatch, worst = self.element(found.first_mismatch), self.element(found.worst)
        said = [*faults]
        if mismatch is not None:
            said.insert(
                0,
                f"NaN or infinity on one side only at {found.mismatch_count} of "
                f"{found.element_count} elements, first at {mismatch}",
            )
        if said and worst is not None:
            said.append(f"worst at {worst}, error {worst.abs_error:.6g}")
        return Comparison(
            passed=not said,
            standard=standard,
            edition="",
            thresholds=thresholds,
            element_count=found.element_count,
            passing_count=found.passing_count,
            max_abs_error=found.max_abs_error,
            mean_rel_error=found.mean_rel_error,
            max_rel_error=found.max_rel_error,
            mismatch_count=found.mismatch_count,
            first_mismatch=mismatch,
            first_failing=self.element(found.first_failing),
            worst=worst,
            reason="; ".join(said),
        )


def _mixed(pair: _Pair, edition: str) -> Comparison:
    limits = MIXED[edition][pair.dtype]

    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        return pairs.error <= limits.atol + limits.rtol * pairs.magnitude, pairs.error

    found = scan(pair.actual, pair.golden, pair.dtype, rule)
    faults = []
    if found.passing_count / found.element_count < MIN_SHARE:
        faults.append(_share_fault(found, f"at least {MIN_SHARE:g} must"))
    worst = pair.element(found.worst)
    # the worst element by this rule is the first one with the largest error
    largest_allowed = limits.floor
    if worst is not None:
        largest_allowed = max(limits.floor, MAX_ULPS * ulp(worst.golden, pair.dtype))
    if found.max_abs_error > largest_allowed:
        faults.append(
            f"the largest absolute error is {found.max_abs_error:.6g}, at most "
            f"{largest_allowed:.6g} is allowed there"
        )
    thresholds = {
        "rtol": limits.rtol,
        "atol": limits.atol,
        "min_share": MIN_SHARE,
        "floor": limits.floor,
        "max_ulps": MAX_ULPS,
        "max_abs_error": largest_allowed,
    }
    return replace(pair.judged("mixed", found, thresholds, faults), edition=edition)


def _stat_rel_err(pair: _Pair) -> Comparison:
    mean_limit = MEAN_REL_ERROR[pair.dtype]
    max_limit = MAX_OVER_MEAN * mean_limit

    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        return pairs.relative < max_limit, pairs.relative

    found = scan(pair.actual, pair.golden, pair.dtype, rule)
    faults = [
        f"the {what} relative error is {error:.6g}, it must be under {limit:.6g}"
        for what, error, limit in (
            ("mean", found.mean_rel_error, mean_limit),
            ("largest", found.max_rel_error, max_limit),
        )
        if not error < limit
    ]
    thresholds = {"mean_rel_error": mean_limit, "max_rel_error": max_limit}
    return pair.judged("stat_rel_err", found, thresholds, faults)


def _close(pair: _Pair, rtol: float, ptol: float, atol: float) -> Comparison:
    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        excess = pairs.error - (atol + rtol * pairs.magnitude)
        return excess <= 0, excess

    found = scan(pair.actual, pair.golden, pair.dtype, rule)
    missing = found.element_count - found.passing_count
    faults = []
    if missing / found.element_count > ptol:
        faults.append(_share_fault(found, f"at most {ptol:g} may miss"))
    thresholds = {"rtol": rtol, "atol": atol, "ptol": ptol}
    return pair.judged("close", found, thresholds, faults)


def _binary(pair: _Pair) -> Comparison:
    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        same = pairs.same_bits()
        # the worst is one that does not pass, however far it is from an unrounded golden
        return same, np.where(same, -np.inf, pairs.error)

    found = scan(pair.actual, pair.golden, pair.dtype, rule)
    faults = []
    if found.passing_count < found.element_count:
        faults.append(_share_fault(found, "every one must"))
    return pair.judged("binary", found, {}, faults)


def _share_fault(found: Scan, needed: str) -> str:
    return f"{found.passing_count} of {found.element_count} elements pass, {needed}"


def _check_arrays(actual: Array, golden: Array, dtype: DType) -> None:
    if actual.shape != golden.shape or not actual.size:
        raise Problem(
            Reason.SHAPE_MISMATCH,
            f"actual has shape {list(actual.shape)}, golden has {list(golden.shape)}; they must be "
            "equal, with no axis of 0",
            argument="actual",
        )
    for name, array, allowed in (
        ("actual", actual, (dtype.numpy,)),
        ("golden", golden, (dtype.numpy, np.dtype(np.float64))),
    ):
        if array.dtype not in allowed:
            words = " or ".join(str(item) for item in allowed)
            raise Problem(
                Reason.DTYPE_NOT_ALLOWED,
                f"{name} has dtype {array.dtype}; allowed is {words}",
                argument=name,
                given=str(array.dtype),
                allowed=words,
            )
