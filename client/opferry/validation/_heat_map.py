"""Where the elements lie that do not pass, from one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.validation._scan import Block
from opferry.validation.findings import HeatMap

MAX_BINS = (12, 24, 12)
"""The most bins by position, head and dim: 3456. Mistakes follow heads most often."""

Array = NDArray[Any]


class HeatMapBins:
    """Counts the elements that do not pass by position, head and dim.

    The last axis is dim, the one before it head, all others position; where an output has no such
    axis, its extent is 1.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        head, dim = (1, 1, *shape)[-2:]
        self._extents = (math.prod(shape[:-2]), head, dim)
        position_bins, head_bins, dim_bins = (
            min(extent, most) for extent, most in zip(self._extents, MAX_BINS, strict=True)
        )
        self._bins = (position_bins, head_bins, dim_bins)
        self._failing = np.zeros(math.prod(self._bins), np.int64)

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """Every element of a block without errors passes."""

    def differing(self, block: Block) -> None:
        """Count those of any other block."""
        if block.passes.all():
            return
        rest = np.flatnonzero(~block.passes) + block.first
        bins = np.zeros_like(rest)
        step = 1
        for extent, count in zip(reversed(self._extents), reversed(self._bins), strict=True):
            rest, place = np.divmod(rest, extent)
            # the last bin that begins at this place or before it
            bins += ((place + 1) * count - 1) // extent * step
            step *= count
        self._failing += np.bincount(bins, minlength=self._failing.size)

    def result(self) -> HeatMap | None:
        """Return the heat map; None where every element passes."""
        if not self._failing.any():
            return None
        return HeatMap(self._extents, self._bins, tuple(self._failing.tolist()))
