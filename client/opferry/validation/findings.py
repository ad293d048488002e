"""Where and how an output differs from its golden: what a report shows beside the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opferry.validation.comparison import Element


@dataclass(frozen=True)
class WorstElement:
    """One of the elements that are furthest off."""

    element: Element
    """The element, its actual and its golden value."""
    ulps: int | None
    """How many values of the output's dtype lie from the rounded golden to the output; None where
    one of them is NaN."""


@dataclass(frozen=True)
class Histogram:
    """How many elements have an error of which size, by powers of two; finite pairs only.

    Relative errors under 2^-48 are counted at exponent -48, those of 2^48 and more at 48.
    """

    exact_count: int = 0
    """The elements without an error."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """By exponent e, ascending: the elements with 2^e <= error < 2^(e+1); no empty ones."""


@dataclass(frozen=True)
class HeatMap:
    """Where the elements that do not pass lie, downsampled.

    The axes are position (all axes before the last two, in row-major order), head and dim. Bin i of
    an axis of n elements in k bins holds the elements from i*n//k up to (i+1)*n//k.
    """

    extents: tuple[int, int, int]
    """The output's elements by position, head and dim."""
    bins: tuple[int, int, int]
    """The bins of each axis, at most its extent."""
    failing: tuple[int, ...]
    """The elements that do not pass in each bin, in row-major order of *bins*."""


@dataclass(frozen=True)
class ErrorStatistics:
    """What `cross_check` knows of an output; finite pairs only.

    An element is small where |golden| is under the dtype's limit of `standards`.
    """

    max_rel_error: float = 0.0
    """The largest |a-g| / (|g| + 1e-7) over elements that are not small."""
    mean_rel_error: float = 0.0
    """Their mean."""
    rmse: float = 0.0
    """The root of the mean of |a-g|^2 over elements that are not small."""
    small_error_count: int = 0
    """The small elements whose |a-g| is over the dtype's limit."""


@dataclass(frozen=True)
class FailingSlice:
    """The values along the last axis at the first element that does not pass.

    Of an axis of more than 1024, the piece of that length that the element lies in.
    """

    index: tuple[int, ...]
    """The position of its first value."""
    actual: tuple[float, ...]
    """The output's values."""
    golden: tuple[float, ...]
    """The golden's values."""


@dataclass(frozen=True)
class Findings:
    """Where and how an output differs from its golden."""

    worst: tuple[WorstElement, ...] = ()
    """The elements that are furthest off by the standard's measure, NaN and infinity on one side
    only before all others, the worst first; none that is not off at all."""
    relative_errors: Histogram = field(default_factory=Histogram)
    """|a-g| / (|g| + 1e-7)."""
    ulp_distances: Histogram = field(default_factory=Histogram)
    """How many values of the output's dtype lie from the rounded golden to the output."""
    statistics: ErrorStatistics = field(default_factory=ErrorStatistics)
    """What `cross_check` compares."""
    heat_map: HeatMap | None = None
    """None where every element passes."""
    failing_slice: FailingSlice | None = None
    """None where every element passes, or the output has no axis."""
