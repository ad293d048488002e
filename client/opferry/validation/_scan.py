"""One pass over an output and its golden, in blocks, whatever the standard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, inf
from typing import Any, Protocol

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
    values: Callable[[], tuple[Array, Array]]
    """Returns the output's and the golden's values, float64."""


@dataclass(frozen=True)
class Block:
    """A block in which output and golden differ, as the standard's rule saw it."""

    first: int
    """The position of its first element."""
    actual: Array
    """The output's values."""
    golden: Array
    """The golden's, of the output's dtype or float64."""
    pairs: FinitePairs
    """The finite pairs among them."""
    finite_count: int
    """How many there are."""
    finite: Array
    """Where they are."""
    mismatch: Array
    """Where NaN or infinity meets something else."""
    passes: Array
    """Where the element passes."""
    severity: Array
    """How bad a finite pair is that differs or does not pass; -inf elsewhere."""


class Watcher(Protocol):
    """Gathers more from the blocks of a pass, in their order."""

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """See a block in which the output has the golden's bits.

        Args:
            values: the values of both.
            magnitudes: their bits without the sign, unsigned integers.
            finite_count: how many are finite.
        """

    def differing(self, block: Block) -> None:
        """See any other block."""


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


def scan(
    actual: Array,
    golden: Array,
    dtype: DType,
    rule: ElementRule,
    watchers: Sequence[Watcher] = (),
) -> Scan:
    """Compare two arrays of one shape.

    Args:
        actual: the output, of *dtype*.
        golden: of *dtype*, or float64 and unrounded.
        dtype: the output's dtype. Infinities are compared after rounding the golden to it.
        rule: the standard's rule for one element.
        watchers: what else looks at the blocks.
    """
    result = Scan(element_count=actual.size)
    sums: list[float] = []
    infinity = FORMATS[dtype].bits(inf)
    with np.errstate(all="ignore"):
        for first, a, g in _blocks(actual, golden):
            # most blocks of most outputs are equal, and then there is nothing to measure
            if g.dtype == a.dtype and _same_bits(a, g, dtype).all():
                # numpy's isfinite takes several times as long on 16 bits
                magnitudes = _magnitudes(a)
                finite_count = int(np.count_nonzero(magnitudes < infinity))
                result.passing_count += a.size
                result.finite_count += finite_count
                for watcher in watchers:
                    watcher.equal(a, magnitudes, finite_count)
                continue
            pairs, finite, mismatch = _finite_pairs(a, g, dtype)
            passes, severity = rule(pairs)
            passes = np.where(finite, passes, ~mismatch)
            sums.append(float(pairs.relative.sum()))
            finite_count = int(finite.sum())
            result.finite_count += finite_count
            result.passing_count += int(passes.sum())
            result.mismatch_count += int(mismatch.sum())
            result.max_abs_error = max(result.max_abs_error, float(pairs.error.max()))
            result.max_rel_error = max(result.max_rel_error, float(pairs.relative.max()))
            differs = finite & ((pairs.error > 0) | ~passes)
            severity = np.where(differs, severity, -np.inf)
            result.note(first, mismatch, ~passes, severity)
            if watchers:
                block = Block(first, a, g, pairs, finite_count, finite, mismatch, passes, severity)
                for watcher in watchers:
                    watcher.differing(block)
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


def _magnitudes(values: Array) -> Array:
    bits = np.dtype(f"u{values.dtype.itemsize}")
    magnitudes: Array = values.view(bits) & np.array(np.iinfo(bits).max >> 1, bits)
    return magnitudes


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
    pairs = FinitePairs(
        error,
        magnitude,
        relative,
        lambda: _same_bits(actual, golden, dtype),
        lambda: (np.where(finite, a, 0.0), np.where(finite, g, 0.0)),
    )
    return pairs, finite, mismatch


def _first(where: Array, offset: int) -> int | None:
    place = int(where.argmax())
    return offset + place if where[place] else None
