"""Whether a device's errors are in proportion to those of another implementation.

Both are measured against one golden, each where it ran: only the figures need to meet. For
elements with |golden| at or over the dtype's limit of small values, the largest relative errors,
their means and the roots of the mean squared errors are divided; for small elements the numbers of
those whose absolute error is over a limit. Each ratio, the device's figure over the other's, has
to stay within the level's limit.

Where the other implementation's figure is 0:

- If the device's is 0 too, the ratio is 1: both are as good as each other.
- A number of small elements is divided by 1, as the standard says, so that two are allowed.
- Any other ratio is infinite and fails: no multiple of no error is an error. That is also what
  the ratio tends to as the other's error does to 0, so a better yardstick is never a laxer one.

The ratios are those that the standard defines. CANN's own kit divides by the dtype's limit of small
values where the other's figure is less, which makes a ratio smaller but never larger: what passes
here passes there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._scan import FinitePairs
from opferry.validation._statistics import ErrorSums
from opferry.validation._verdict import Pair, check_arrays
from opferry.validation.findings import ErrorStatistics
from opferry.validation.standards import DEFAULT_LEVEL, LEVELS, check_level

Array = NDArray[Any]


@dataclass(frozen=True)
class Ratio:
    """One figure of the device over the same of the other implementation."""

    value: float
    """The ratio; infinity where only the device is off."""
    limit: float
    """The largest value that passes."""

    @property
    def passed(self) -> bool:
        """Whether it is within the limit."""
        return self.value <= self.limit


@dataclass(frozen=True)
class CrossCheck:
    """The verdict of `cross_check`, and the ratios behind it."""

    passed: bool
    """The verdict."""
    level: str
    """The level whose limits were used."""
    ratios: Mapping[str, Ratio]
    """By figure: max_rel_error, mean_rel_error, rmse, small_error_count."""
    reason: str = ""
    """Why it did not pass; "" if it did."""


def cross_check(
    first: ErrorStatistics, second: ErrorStatistics, level: str = DEFAULT_LEVEL
) -> CrossCheck:
    """Compare a device's errors with those of another implementation.

    Statistics count finite pairs only: that NaN and infinity stand where the golden has them is
    for the caller to see to, for example by the mismatch_count of each `Comparison`.

    Args:
        first: the device's statistics.
        second: the other implementation's, for the same golden and dtype.
        level: one of `LEVELS`.

    Raises:
        Problem: ATTRIBUTE_INVALID for another level.
    """
    check_level(level)
    limits = LEVELS[level]
    ratios = {
        "max_rel_error": Ratio(
            _ratio(first.max_rel_error, second.max_rel_error), limits.max_rel_error
        ),
        "mean_rel_error": Ratio(
            _ratio(first.mean_rel_error, second.mean_rel_error), limits.mean_rel_error
        ),
        "rmse": Ratio(_ratio(first.rmse, second.rmse), limits.rmse),
        "small_error_count": Ratio(
            _count_ratio(first.small_error_count, second.small_error_count),
            limits.small_error_count,
        ),
    }
    faults = [
        f"{name} is {ratio.value:.6g} times the other implementation's, at most {ratio.limit:g} is "
        "allowed"
        for name, ratio in ratios.items()
        if not ratio.passed
    ]
    return CrossCheck(not faults, level, ratios, "; ".join(faults))


def cross_check_arrays(
    actual: Array,
    golden: Array,
    other: Array,
    *,
    dtype: DType,
    level: str = DEFAULT_LEVEL,
) -> CrossCheck:
    """Compare a device's output with another implementation's by their errors.

    It also fails if NaN or infinity stands in the output and not in the golden or the reverse, and
    if that holds for the other output, which is then no yardstick. Infinities are compared after
    rounding the golden to *dtype*.

    Args:
        actual: the device's output, of *dtype*, any shape with at least one element.
        golden: the same shape; of *dtype*, or float64 and unrounded.
        other: the other implementation's output, of *dtype*, the same shape.
        dtype: the outputs' dtype, which chooses the limits.
        level: one of `LEVELS`.

    Raises:
        Problem: ATTRIBUTE_INVALID for another level; SHAPE_MISMATCH or DTYPE_NOT_ALLOWED if the
            arrays do not belong together.
    """
    check_level(level)
    faults: list[str] = []
    statistics: list[ErrorStatistics] = []
    for name, output in (("actual", actual), ("other", other)):
        check_arrays(output, golden, dtype, name)
        sums = ErrorSums(dtype)
        pair = Pair(output, golden, dtype, (sums,))
        found = pair.scan(_any_pair)
        statistics.append(sums.result())
        if found.first_mismatch is not None:
            faults.append(
                f"NaN or infinity on one side only at {found.mismatch_count} of "
                f"{found.element_count} elements of {name}, first at "
                f"{pair.element(found.first_mismatch)}"
            )
    checked = cross_check(statistics[0], statistics[1], level)
    if checked.reason:
        faults.append(checked.reason)
    return replace(checked, passed=not faults, reason="; ".join(faults))


def _any_pair(pairs: FinitePairs) -> tuple[Array, Array]:
    return np.ones(pairs.error.shape, np.bool_), pairs.error


def _ratio(first: float, second: float) -> float:
    if first == second:
        return 1.0
    return first / second if second else math.inf


def _count_ratio(first: int, second: int) -> float:
    return 1.0 if first == second else first / max(second, 1)
