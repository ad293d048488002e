"""One pass over an output and its golden, in blocks, whatever the standard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation.rounding import FORMATS, round_array
from opferry.validation.standards import REL_EPSILON

BLOCK_ELEMENTS = 64 * 1024
"""Elements compared at once: about ten temporaries of 512 KiB, whatever the tensors' size."""

Array = NDArray[Any]


@dataclass(frozen=True)
class FinitePairs:
    """The elements of a block at which output and golden are finite; elsewhere the values are 0."""

    error: Array
    """|actual - golden|, float64."""
    magnitude: Array
    """|golden|, float64."""
    relative: Array
    """error / (magnitude + 1e-7), float64."""
    same_bits: Callable[[], Array]
    """Returns whether the output has the very bits of the golden rounded to the output's dtype."""


ElementRule = Callable[[FinitePairs], tuple[Array, Array]]
"""Returns for each element whether it passes, and how bad it is; the greatest is the worst."""


@dataclass
class Scan:
    """What a pass found. Positions count elements in row-major order; None: there is none."""

    element_count: int = 0
    """All elements."""
    finite_count: int = 0
    """Elements at which both are finite."""
    passing_count: int = 0
    """Elements that pass, those that are NaN, or the same infinity, in both among them."""
    mismatch_count: int = 0
    """Elements at which one is NaN or infinite and the other is not, or is another infinity."""
    first_mismatch: int | None = None
    """The first of them."""
    first_failing: int | None = None
    """The first element that does not pass."""
    worst: int | None = None
    """The first of the worst elements among finite pairs that differ or do not pass."""
    max_abs_error: float = 0.0
    """The largest error over finite pairs."""
    max_rel_error: float = 0.0
    """The largest relative error over finite pairs."""
    mean_rel_error: float = 0.0
    """The mean of the relative errors over finite pairs."""
    worst_severity: float = -np.inf
    """How bad the worst element is."""

    def note(self, first: int, mismatch: Array, failing: Array, severity: Array) -> None:
        """Remember positions in a block that begins with element *first*."""
        if self.first_mismatch is None:
            self.first_mismatch = _first(mismatch, first)
        if self.first_failing is None:
            self.first_failing = _first(failing, first)
        place = int(severity.argmax())
        if severity[place] > self.worst_severity:
            self.worst_severity = float(severity[place])
            self.worst = first + place


def scan(actual: Array, golden: Array, dtype: DType, rule: ElementRule) -> Scan:
    """Compare two arrays of one shape.

    Args:
        actual: the output, of *dtype*.
        golden: of *dtype*, or float64 and unrounded.
        dtype: the output's dtype. Infinities are compared after rounding the golden to it.
        rule: the standard's rule for one element.
    """
    result = Scan(element_count=actual.size)
    sums: list[float] = []
    with np.errstate(all="ignore"):
        for first, a, g in _blocks(actual, golden):
            # most blocks of most outputs are equal, and then there is nothing to measure
            if g.dtype == a.dtype and _same_bits(a, g, dtype).all():
                result.passing_count += a.size
                result.finite_count += int(np.isfinite(a).sum())
                continue
            pairs, finite, mismatch = _finite_pairs(a, g, dtype)
            passes, severity = rule(pairs)
            passes = np.where(finite, passes, ~mismatch)
            sums.append(float(pairs.relative.sum()))
            result.finite_count += int(finite.sum())
            result.passing_count += int(passes.sum())
            result.mismatch_count += int(mismatch.sum())
            result.max_abs_error = max(result.max_abs_error, float(pairs.error.max()))
            result.max_rel_error = max(result.max_rel_error, float(pairs.relative.max()))
            differs = finite & ((pairs.error > 0) | ~passes)
            result.note(first, mismatch, ~passes, np.where(differs, severity, -np.inf))
    if result.finite_count:
        result.mean_rel_error = fsum(sums) / result.finite_count
    return result


def _blocks(actual: Array, golden: Array) -> Iterator[tuple[int, Array, Array]]:
    # no copy for the contiguous arrays that results are
    a, g = actual.reshape(-1), golden.reshape(-1)
    for first in range(0, a.size, BLOCK_ELEMENTS):
        yield first, a[first : first + BLOCK_ELEMENTS], g[first : first + BLOCK_ELEMENTS]


def _same_bits(actual: Array, golden: Array, dtype: DType) -> Array:
    rounded = golden if golden.dtype == actual.dtype else round_array(golden, dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    same: Array = actual.view(bits) == rounded.view(bits)
    return same


def _finite_pairs(actual: Array, golden: Array, dtype: DType) -> tuple[FinitePairs, Array, Array]:
    """Return the finite pairs, where they are, and where NaN or infinity meets something else."""
    a, g = actual.astype(np.float64), golden.astype(np.float64)
    g_infinite = np.abs(g) >= FORMATS[dtype].overflow
    finite = np.isfinite(a) & ~np.isnan(g) & ~g_infinite
    same_infinity = np.isinf(a) & g_infinite & (np.signbit(a) == np.signbit(g))
    mismatch = ~finite & ~same_infinity & ~(np.isnan(a) & np.isnan(g))
    error = np.where(finite, np.abs(a - g), 0.0)
    magnitude = np.where(finite, np.abs(g), 0.0)
    relative = error / (magnitude + REL_EPSILON)
    pairs = FinitePairs(error, magnitude, relative, lambda: _same_bits(actual, golden, dtype))
    return pairs, finite, mismatch


def _first(where: Array, offset: int) -> int | None:
    place = int(where.argmax())
    return offset + place if where[place] else None
