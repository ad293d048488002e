"""The angle between an output and its golden, from one pass."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._scan import Block
from opferry.validation.rounding import round_value

Array = NDArray[Any]


class CosineSums:
    """The sums of products over finite pairs, in float64.

    Nothing need be scaled: squares of values of the dtypes lie from 2^-298 to 2^256, and those of
    a golden that counts as other than 0 likewise.
    """

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._actual_squares: list[float] = []
        self._golden_squares: list[float] = []
        self._products: list[float] = []
        self._largest_golden = 0.0

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """Add a block in which both are the same."""
        wide = values.astype(np.float64)
        if finite_count < values.size:
            wide = np.where(np.isfinite(wide), wide, 0.0)
        self._add(wide, wide)

    def differing(self, block: Block) -> None:
        """Add any other block."""
        self._add(*block.pairs.values())

    def _add(self, actual: Array, golden: Array) -> None:
        # not dot(): the order of its additions is the machine's
        squares = float((actual * actual).sum())
        self._actual_squares.append(squares)
        if golden is actual:
            self._golden_squares.append(squares)
            self._products.append(squares)
        else:
            self._golden_squares.append(float((golden * golden).sum()))
            self._products.append(float((actual * golden).sum()))
        self._largest_golden = max(self._largest_golden, float(np.abs(golden).max()))

    @property
    def zero(self) -> str | None:
        """Which of them is 0 though the other is not, "output" or "golden"; None if neither."""
        actual_is_zero = math.fsum(self._actual_squares) == 0
        golden_is_zero = round_value(self._largest_golden, self._dtype) == 0
        if actual_is_zero == golden_is_zero:
            return None
        return "output" if actual_is_zero else "golden"

    @property
    def distance(self) -> float:
        """1 - cos, from 0 to 2; 0 if both are 0, and 1 if only one is."""
        if self.zero is not None:
            return 1.0
        actual, golden = math.fsum(self._actual_squares), math.fsum(self._golden_squares)
        if actual == 0:
            return 0.0
        cosine = math.fsum(self._products) / (math.sqrt(actual) * math.sqrt(golden))
        return min(max(1.0 - cosine, 0.0), 2.0)

    def within(self, limit: float) -> bool:
        """Whether 1 - cos is at most a limit under 1, the decimal number that it is written as.

        In fractions, since 1 - 0.99 is over 0.01 in floating point.
        """
        if self.zero is not None:
            return False
        product = Fraction(math.fsum(self._products))
        squares = Fraction(math.fsum(self._actual_squares)) * Fraction(
            math.fsum(self._golden_squares)
        )
        if math.fsum(self._actual_squares) == 0:
            return True
        least = 1 - Fraction(str(limit))
        return product > 0 and product**2 >= least**2 * squares
