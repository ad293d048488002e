"""The standards at work: each judges a pair in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.validation._cosine import CosineSums
from opferry.validation._scan import ElementRule, FinitePairs, Scan, Watcher, scan
from opferry.validation.comparison import Comparison, Element
from opferry.validation.rounding import ulp
from opferry.validation.standards import (
    CLOSE_ATOL,
    CLOSE_RTOL,
    COSINE_DISTANCE,
    MAX_OVER_MEAN,
    MAX_ULPS,
    MEAN_REL_ERROR,
    MIN_SHARE,
    MIXED,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """An output and its golden."""

    actual: Array
    """The output, of *dtype*."""
    golden: Array
    """The golden, of *dtype* or float64."""
    dtype: DType
    """The output's dtype."""
    watchers: tuple[Watcher, ...] = ()
    """What else looks at their blocks."""

    def scan(self, rule: ElementRule, *watchers: Watcher) -> Scan:
        """Compare them by a rule, with *watchers* beside its own."""
        return scan(self.actual, self.golden, self.dtype, rule, (*self.watchers, *watchers))

    def element(self, position: int) -> Element:
        """Return the element at a position in row-major order."""
        index = tuple(int(i) for i in np.unravel_index(position, self.actual.shape))
        return Element(index, float(self.actual[index]), float(self.golden[index]))

    def judged(
        self, standard: str, found: Scan, thresholds: Mapping[str, float], faults: Sequence[str]
    ) -> Comparison:
        """Return the comparison; it passed if there are neither faults nor mismatches."""
        mismatch, failing, worst = (
            None if position is None else self.element(position)
            for position in (found.first_mismatch, found.first_failing, found.worst)
        )
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
            first_failing=failing,
            worst=worst,
            reason="; ".join(said),
        )


def judge(
    pair: Pair,
    standard: str,
    *,
    edition: str,
    rtol: float | None,
    ptol: float | None,
    atol: float | None,
) -> Comparison:
    """Judge a pair by a standard.

    Args:
        pair: the pair; `check_arrays` took it.
        standard: as `check_standard` took it, with all that follows.
        edition: for `mixed`.
        rtol: for `close`; None for the default.
        ptol: likewise.
        atol: likewise.
    """
    if standard == "mixed":
        return _mixed(pair, edition)
    if standard == "stat_rel_err":
        return _stat_rel_err(pair)
    if standard == "close":
        default = CLOSE_RTOL[pair.dtype]
        return _close(
            pair,
            default if rtol is None else rtol,
            default if ptol is None else ptol,
            CLOSE_ATOL if atol is None else atol,
        )
    if standard == "cosine":
        return _cosine(pair)
    if standard == "binary":
        return _binary(pair)
    raise AssertionError(f"{standard} has no line here")


def _mixed(pair: Pair, edition: str) -> Comparison:
    limits = MIXED[edition][pair.dtype]

    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        return pairs.error <= limits.atol + limits.rtol * pairs.magnitude, pairs.error

    found = pair.scan(rule)
    faults = []
    if found.passing_count / found.element_count < MIN_SHARE:
        faults.append(_share_fault(found, f"at least {MIN_SHARE:g} must"))
    # the worst element by this rule is the first one with the largest error
    largest_allowed = limits.floor
    if found.worst is not None:
        worst = pair.element(found.worst)
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


def _stat_rel_err(pair: Pair) -> Comparison:
    mean_limit = MEAN_REL_ERROR[pair.dtype]
    max_limit = MAX_OVER_MEAN * mean_limit

    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        return pairs.relative < max_limit, pairs.relative

    found = pair.scan(rule)
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


def _close(pair: Pair, rtol: float, ptol: float, atol: float) -> Comparison:
    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        excess = pairs.error - (atol + rtol * pairs.magnitude)
        return excess <= 0, excess

    found = pair.scan(rule)
    missing = found.element_count - found.passing_count
    faults = []
    if missing / found.element_count > ptol:
        faults.append(_share_fault(found, f"at most {ptol:g} may miss"))
    thresholds = {"rtol": rtol, "atol": atol, "ptol": ptol}
    return pair.judged("close", found, thresholds, faults)


def _cosine(pair: Pair) -> Comparison:
    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        # the standard has no rule for one element
        return np.ones(pairs.error.shape, np.bool_), pairs.error

    sums = CosineSums(pair.dtype)
    found = pair.scan(rule, sums)
    faults = []
    if not sums.within(COSINE_DISTANCE):
        faults.append(
            f"1 - cos is {sums.distance:.6g}, at most {COSINE_DISTANCE:g} is allowed"
            if sums.zero is None
            else f"every finite value of the {sums.zero} is 0, and the other's are not"
        )
    thresholds = {"cosine_distance": COSINE_DISTANCE}
    judged = pair.judged("cosine", found, thresholds, faults)
    return replace(judged, cosine_distance=sums.distance)


def _binary(pair: Pair) -> Comparison:
    def rule(pairs: FinitePairs) -> tuple[Array, Array]:
        same = pairs.same_bits()
        # the worst is one that does not pass, however far it is from an unrounded golden
        return same, np.where(same, -np.inf, pairs.error)

    found = pair.scan(rule)
    faults = []
    if found.passing_count < found.element_count:
        faults.append(_share_fault(found, "every one must"))
    return pair.judged("binary", found, {}, faults)


def _share_fault(found: Scan, needed: str) -> str:
    return f"{found.passing_count} of {found.element_count} elements pass, {needed}"


def check_arrays(actual: Array, golden: Array, dtype: DType, name: str = "actual") -> None:
    """Refuse arrays that do not belong together.

    Args:
        actual: the output.
        golden: its golden.
        dtype: the output's dtype.
        name: the parameter that the output was given for.

    Raises:
        Problem: SHAPE_MISMATCH or DTYPE_NOT_ALLOWED.
    """
    if actual.shape != golden.shape or not actual.size:
        raise Problem(
            Reason.SHAPE_MISMATCH,
            f"{name} has shape {list(actual.shape)}, golden has {list(golden.shape)}; they must be "
            "equal, with no axis of 0",
            argument=name,
        )
    for argument, array, allowed in (
        (name, actual, (dtype.numpy,)),
        ("golden", golden, (dtype.numpy, np.dtype(np.float64))),
    ):
        if array.dtype not in allowed:
            words = " or ".join(str(item) for item in allowed)
            raise Problem(
                Reason.DTYPE_NOT_ALLOWED,
                f"{argument} has dtype {array.dtype}; allowed is {words}",
                argument=argument,
                given=str(array.dtype),
                allowed=words,
            )
