"""The grid on which values are drawn: integer multiples of a power of two, rounded once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from opferry.core.dtypes import DType
from opferry.validation.rounding import FORMATS

MAX_POINTS = 2**32
"""A draw is 32 bits, and each point of the grid has a share of them."""

POINT_BITS = {DType.FLOAT32: 53, DType.FLOAT16: 24, DType.BFLOAT16: 24}
"""A point n has at most so many bits: n is exact in float64, which is rounded to float32, or in
float32, which is rounded to the 16-bit dtypes."""

KNOWN_COUNT = 256
"""How many grids are remembered, those used last: the inputs of a suite have few."""


@dataclass(frozen=True)
class Grid:
    """The points first to last; the point n is the value n * 2^exponent, rounded to the dtype.

    The first point stands for the lower bound and the last for the upper one, also where a bound is
    no multiple of the unit; every point between lies between the bounds.
    """

    exponent: int
    """The unit is 2^exponent; it is not smaller than the dtype's least subnormal value."""
    first: int
    """The point of the lower bound: the bound in units, rounded down."""
    last: int
    """The point of the upper bound: the bound in units, rounded up."""
    is_exact: bool
    """Whether both bounds are multiples of the unit."""


@lru_cache(KNOWN_COUNT)
def grid_between(low: float, high: float, dtype: DType) -> Grid:
    """Return the finest grid between two bounds.

    Args:
        low: a finite value of the dtype.
        high: likewise; not less than low.
        dtype: the dtype of the values.
    """
    form = FORMATS[dtype]
    least = Fraction(2) ** form.least_exponent
    # every value of the dtype is a multiple of its least subnormal value
    bottom, top = int(Fraction(low) / least), int(Fraction(high) / least)
    largest = 2 ** POINT_BITS[dtype]
    shift = 0
    while True:
        first, last = bottom >> shift, -(-top >> shift)
        if last - first < MAX_POINTS and -first <= largest and last <= largest:
            break
        shift += 1
    is_exact = first << shift == bottom and last << shift == top
    return Grid(form.least_exponent + shift, first, last, is_exact)
