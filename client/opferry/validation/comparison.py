"""The verdict on one output, and the figures behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """One element of an output and of its golden."""

    index: tuple[int, ...]
    """Its position, one number for each axis."""
    actual: float
    """The output's value."""
    golden: float
    """The golden's value, unrounded if the golden is float64."""

    @property
    def abs_error(self) -> float:
        """|actual - golden|; NaN or infinity where one of them is not finite."""
        return abs(self.actual - self.golden)

    def __str__(self) -> str:
        return f"{list(self.index)}: got {self.actual:.9g}, golden {self.golden:.9g}"


@dataclass(frozen=True)
class Comparison:
    """The verdict on one output, and the figures behind it."""

    passed: bool
    """The verdict."""
    standard: str
    """The standard that judged."""
    edition: str
    """Its edition; "" where it has but one."""
    thresholds: Mapping[str, float]
    """The thresholds used, by name."""
    element_count: int
    """All elements."""
    passing_count: int
    """The elements that pass the standard's rule for one element."""
    max_abs_error: float
    """The largest absolute error over finite pairs."""
    mean_rel_error: float
    """The mean relative error over finite pairs, as `stat_rel_err` defines it."""
    max_rel_error: float
    """The largest relative error over finite pairs, likewise."""
    mismatch_count: int
    """The elements at which NaN or infinity meets something else."""
    first_mismatch: Element | None = None
    """The first of them, or None."""
    first_failing: Element | None = None
    """The first element that does not pass, or None."""
    worst: Element | None = None
    """The finite pair furthest off by the standard's measure; None if none is off at all."""
    reason: str = ""
    """Why it did not pass; "" if it did."""
    cosine_distance: float | None = None
    """1 - cos(actual, golden) over finite pairs, 0 to 2; None but for `cosine`."""

    @property
    def share(self) -> float:
        """The share of elements that pass, 0 to 1."""
        return self.passing_count / self.element_count
