"""The error statistics that `cross_check` compares, from one pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._scan import Block
from opferry.validation.findings import ErrorStatistics
from opferry.validation.rounding import FORMATS
from opferry.validation.standards import SMALL, SMALL_ERROR

Array = NDArray[Any]


class ErrorSums:
    """The sums and counts behind `ErrorStatistics`."""

    def __init__(self, dtype: DType) -> None:
        self._small = SMALL[dtype]
        self._small_bits = FORMATS[dtype].bits(self._small)
        self._small_error = SMALL_ERROR[dtype]
        self._count = 0
        self._max_relative = 0.0
        self._relatives: list[float] = []
        self._squares: list[float] = []
        self._small_error_count = 0

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """Count the elements of a block without errors."""
        at_least_small = int(np.count_nonzero(magnitudes >= self._small_bits))
        self._count += at_least_small - (values.size - finite_count)

    def differing(self, block: Block) -> None:
        """Add any other block."""
        error, relative = block.pairs.error, block.pairs.relative
        # where a pair is not finite, magnitude and error are 0
        counts = block.pairs.magnitude >= self._small
        count = int(np.count_nonzero(counts))
        if count < counts.size:
            self._small_error_count += int(np.count_nonzero(~counts & (error > self._small_error)))
            error, relative = np.where(counts, error, 0.0), np.where(counts, relative, 0.0)
        self._count += count
        self._max_relative = max(self._max_relative, float(relative.max()))
        self._relatives.append(float(relative.sum()))
        # errors of values of the dtypes are under 2^129: their squares do not overflow
        self._squares.append(float((error * error).sum()))

    def result(self) -> ErrorStatistics:
        """Return the statistics of what was seen."""
        if not self._count:
            return ErrorStatistics(small_error_count=self._small_error_count)
        return ErrorStatistics(
            max_rel_error=self._max_relative,
            mean_rel_error=math.fsum(self._relatives) / self._count,
            rmse=math.sqrt(math.fsum(self._squares) / self._count),
            small_error_count=self._small_error_count,
        )
