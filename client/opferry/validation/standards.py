"""The comparison standards as data: thresholds by dtype and edition.

The figures are those of CANN's ops-test-kit, document "Precision Comparison" (the open accuracy
standard for floating-point operators of the ecosystem), and of that standard's earlier edition;
those of `cross_check` stand there and in CANN's accuracy standard for commercial operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason

STANDARDS = ("mixed", "stat_rel_err", "close", "cosine", "binary")
"""The names of the standards, the default first."""

EDITIONS = ("current", "earlier")
"""The editions of `mixed`, the default first."""

MIN_SHARE = 0.99
"""`mixed`: the least share of passing elements."""

MAX_ULPS = 32
"""`mixed`: the largest absolute error in units of the golden's last place, where over the floor."""

MAX_OVER_MEAN = 10
"""`stat_rel_err`: the limit of the largest relative error over that of the mean."""

REL_EPSILON = 1e-7
"""What is added to |golden| in relative errors."""


class MixedThresholds(NamedTuple):
    """The thresholds of `mixed` for one dtype."""

    rtol: float
    """The error allowed relative to the golden value."""
    atol: float
    """The absolute error allowed beside it."""
    floor: float
    """The largest absolute error that any element may have, however small its golden value."""


MIXED: Mapping[str, Mapping[DType, MixedThresholds]] = {
    "current": {
        DType.FLOAT16: MixedThresholds(2**-9, 2**-9, 1e-1),
        DType.BFLOAT16: MixedThresholds(2**-6, 2**-6, 1.0),
        DType.FLOAT32: MixedThresholds(2**-10, 2**-16, 1e-2),
    },
    "earlier": {
        DType.FLOAT16: MixedThresholds(2**-10, 2**-10, 1e-1),
        DType.BFLOAT16: MixedThresholds(2**-7, 2**-7, 1e-1),
        DType.FLOAT32: MixedThresholds(2**-13, 2**-13, 1e-2),
    },
}
"""The thresholds of `mixed` by edition and dtype."""

MEAN_REL_ERROR: Mapping[DType, float] = {
    DType.FLOAT16: 2**-10,
    DType.BFLOAT16: 2**-7,
    DType.FLOAT32: 2**-13,
}
"""`stat_rel_err`: what the mean of the relative errors stays under."""

CLOSE_RTOL: Mapping[DType, float] = {
    DType.FLOAT16: 0.001,
    DType.BFLOAT16: 0.001,
    DType.FLOAT32: 0.0001,
}
"""`close`: rtol, and the share of elements that may miss, where a row names none."""

CLOSE_ATOL = 1e-8
"""`close`: atol where a row names none."""

COSINE_DISTANCE = 0.01
"""`cosine`: the largest 1 - cos(a, g) that passes."""

SMALL: Mapping[DType, float] = {
    DType.FLOAT16: 2**-11,
    DType.BFLOAT16: 2**-8,
    DType.FLOAT32: 2**-14,
}
"""`cross_check`: an element is small where |golden| is under this."""

SMALL_ERROR: Mapping[DType, float] = {
    DType.FLOAT16: 2**-16,
    DType.BFLOAT16: 2**-16,
    DType.FLOAT32: 2**-30,
}
"""`cross_check`: the absolute error over which a small element is counted."""


class RatioLimits(NamedTuple):
    """How many times the other implementation's error `cross_check` allows, by figure."""

    max_rel_error: float
    """For the largest relative errors."""
    mean_rel_error: float
    """For their means."""
    rmse: float
    """For the roots of the mean squared errors."""
    small_error_count: float = 2.0
    """For the numbers of small elements whose error counts."""


LEVELS: Mapping[str, RatioLimits] = {
    "L0": RatioLimits(10.0, 2.0, 2.0),
    "L1": RatioLimits(5.0, 1.5, 1.5),
    "L2": RatioLimits(2.0, 1.2, 1.2),
}
"""The limits of `cross_check` by level: L0 for ordinary operators, L2 for the most critical."""

DEFAULT_LEVEL = "L1"
"""The level of `cross_check` where none is named."""


def check_standard(
    standard: str,
    edition: str,
    *,
    rtol: float | None = None,
    ptol: float | None = None,
    atol: float | None = None,
) -> None:
    """Refuse a word that is not served, and thresholds that the standard does not take.

    Args:
        standard: one of `STANDARDS`.
        edition: one of `EDITIONS`; other than the first for `mixed` only.
        rtol: for `close` only.
        ptol: for `close` only.
        atol: for `close` only.

    Raises:
        Problem: ATTRIBUTE_INVALID, naming the word and what is allowed.
    """
    if standard not in STANDARDS:
        raise _invalid("compare", standard, ", ".join(STANDARDS))
    if edition not in EDITIONS:
        raise _invalid("edition", edition, ", ".join(EDITIONS))
    if edition != EDITIONS[0] and standard != "mixed":
        raise _invalid("edition", edition, f"{EDITIONS[0]} with {standard}; only mixed has others")
    for name, value in (("rtol", rtol), ("ptol", ptol), ("atol", atol)):
        if value is not None and standard != "close":
            raise _invalid(name, f"{value:g}", f"none with {standard}; only close takes it")
        if value is not None and not 0 <= value < float("inf"):
            raise _invalid(name, f"{value:g}", "0 or more")


def check_level(level: str) -> None:
    """Refuse a level of `cross_check` that is not in `LEVELS`.

    Raises:
        Problem: ATTRIBUTE_INVALID, naming the word and what is allowed.
    """
    if level not in LEVELS:
        raise _invalid("level", level, ", ".join(LEVELS))


def check_worst_count(worst_count: int) -> None:
    """Refuse a negative number of worst elements.

    Raises:
        Problem: ATTRIBUTE_INVALID.
    """
    if worst_count < 0:
        raise _invalid("worst_count", str(worst_count), "0 or more")


def _invalid(argument: str, given: str, allowed: str) -> Problem:
    return Problem(
        Reason.ATTRIBUTE_INVALID,
        f"{argument} is {given[:40]}; allowed is {allowed}",
        argument=argument,
        given=given[:40],
        allowed=allowed,
    )
