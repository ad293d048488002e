"""Histograms of errors by powers of two, from one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._scan import Block
from opferry.validation.findings import Histogram
from opferry.validation.rounding import round_array, ulp_distances

MAX_EXPONENT = 48
"""Errors under 2^-48 are counted at exponent -48, those of 2^48 and more at 48."""

_MANTISSA_BITS, _BIAS = 52, 1023

Array = NDArray[Any]


class ErrorHistograms:
    """Counts relative errors and distances in places by their binary exponents."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._relative = _Exponents(-MAX_EXPONENT)
        # the largest distance is under 2^33
        self._ulps = _Exponents(0)

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """Count the elements of a block without errors."""
        self._relative.exact_count += finite_count
        self._ulps.exact_count += finite_count

    def differing(self, block: Block) -> None:
        """Count the finite pairs of any other block."""
        self._relative.add(block.pairs.relative, block.finite_count)
        golden = block.golden
        if golden.dtype != block.actual.dtype:
            golden = round_array(golden, self._dtype)
        # exact: float64 holds every integer up to 2^53
        distances = ulp_distances(block.actual, golden).astype(np.float64)
        if block.finite_count < distances.size:
            distances = np.where(block.finite, distances, 0.0)
        self._ulps.add(distances, block.finite_count)

    def results(self) -> tuple[Histogram, Histogram]:
        """Return the histograms of relative errors and of distances."""
        return self._relative.result(), self._ulps.result()


class _Exponents:
    def __init__(self, low: int) -> None:
        self._low = low
        # by the field of the exponent
        self._counts = np.zeros(2 * _BIAS + 2, np.int64)
        self.exact_count = 0

    def add(self, values: Array, finite_count: int) -> None:
        """Count float64 values of 0 or more by floor(log2); those that are 0 as exact.

        Args:
            values: one for each element; 0 for those that are not finite pairs.
            finite_count: how many are finite pairs.
        """
        fields = values.view(np.int64) >> _MANTISSA_BITS
        self._counts += np.bincount(fields, minlength=self._counts.size)
        nonzero = int(np.count_nonzero(values > 0))
        # the field of 0 is that of subnormal values
        self._counts[0] -= values.size - nonzero
        self.exact_count += finite_count - nonzero

    def result(self) -> Histogram:
        counts: dict[int, int] = {}
        for field in np.flatnonzero(self._counts).tolist():
            place = min(max(field - _BIAS, self._low), MAX_EXPONENT)
            counts[place] = counts.get(place, 0) + int(self._counts[field])
        return Histogram(self.exact_count, counts)
