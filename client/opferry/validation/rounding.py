"""Rounding of float64 values to the three dtypes in one step, and distances in last places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType


@dataclass(frozen=True)
class FloatFormat:
    """The parameters of a binary floating-point format, as IEEE 754 names them."""

    precision: int
    """The bits of the significand, the hidden one counted."""
    max_exponent: int
    """The exponent of the largest finite value."""

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal value."""
        return 1 - self.max_exponent

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest subnormal value; every value is a multiple of that one."""
        return self.min_exponent - self.precision + 1

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return math.ldexp(2.0 - math.ldexp(1.0, 1 - self.precision), self.max_exponent)

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounds to infinity: half a place above the largest."""
        return math.ldexp(2.0 - math.ldexp(1.0, -self.precision), self.max_exponent)

    def spacing(self, value: float) -> float:
        """Return the distance between neighbours in the binade of a finite value."""
        exponent = math.frexp(value)[1] - 1 if value else self.min_exponent
        return math.ldexp(1.0, max(exponent, self.min_exponent) - self.precision + 1)

    def bits(self, value: float) -> int:
        """Return the bits of a value of this format; NaN's are the canonical ones.

        In integers, since a thread may be set to flush subnormal values to zero.

        Args:
            value: one that `round_value` returned.
        """
        fields = self.precision - 1
        if math.isnan(value):
            return (4 * self.max_exponent + 3) << (fields - 1)
        if math.isinf(value):
            bits = (2 * self.max_exponent + 1) << fields
        else:
            count = int(math.ldexp(abs(value), -self.least_exponent))
            exponent = max(count.bit_length() - self.precision, 0)
            bits = (exponent << fields) + (count >> exponent)
        sign = math.copysign(1.0, value) < 0
        return bits | sign << (fields + self.max_exponent.bit_length() + 1)


FORMATS: Mapping[DType, FloatFormat] = {
    DType.FLOAT32: FloatFormat(24, 127),
    DType.FLOAT16: FloatFormat(11, 15),
    DType.BFLOAT16: FloatFormat(8, 127),
}
"""The format of each dtype."""


def round_value(value: float, dtype: DType) -> float:
    """Return a float64 value rounded to a dtype, to nearest, ties to even, in one step."""
    form = FORMATS[dtype]
    if not math.isfinite(value):
        return value
    if abs(value) >= form.overflow:
        return math.copysign(math.inf, value)
    spacing = form.spacing(value)
    # scaling by a power of two is exact, and Python's round takes ties to even
    return math.copysign(round(value / spacing) * spacing, value)


def ulp(value: float, dtype: DType) -> float:
    """Return the unit in the last place of a finite value after rounding it to a dtype."""
    return FORMATS[dtype].spacing(round_value(value, dtype))


def round_array(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Return float64 values rounded to a dtype, to nearest, ties to even, in one step.

    Args:
        values: float64, any shape.
        dtype: the dtype of the result.
    """
    with np.errstate(all="ignore"):
        if dtype is not DType.BFLOAT16:
            return values.astype(dtype.numpy)
        # By way of float32, where a value just off a tie of bfloat16 would land on the tie: such a
        # one is first moved by one place towards where it came from.
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        wide = single.astype(np.float64)
        on_tie = (bits & 0xFFFF) == 0x8000
        bits += on_tie & (np.abs(values) > np.abs(wide))
        bits -= on_tie & (np.abs(values) < np.abs(wide))
        return single.astype(dtype.numpy)


def ulp_distances(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return how many steps from value to next value of the dtype lie between two arrays.

    +0 and -0 are one value, and infinity is one step beyond the largest finite one. Where either is
    NaN the number means nothing.

    Args:
        first: of one of the three dtypes, any shape.
        second: of the same dtype and shape.

    Returns:
        int32 for the dtypes of 16 bits, int64 for float32; 0 or more.
    """
    bits = np.dtype(f"i{first.dtype.itemsize}")
    wide = np.int32 if bits.itemsize == 2 else np.int64
    steps: NDArray[Any] = _ordered(first.view(bits)).astype(wide)
    steps -= _ordered(second.view(bits))
    np.abs(steps, out=steps)
    return steps


def _ordered(bits: NDArray[Any]) -> NDArray[Any]:
    """Return bits as integers in the order of the values, with 0 for both zeros."""
    # -1 for negative values: flipping the magnitude's bits and adding 1 negates it; where() would
    # take ten times as long on signs at random
    signs = bits >> (8 * bits.itemsize - 1)
    ordered: NDArray[Any] = ((bits & np.iinfo(bits.dtype).max) ^ signs) - signs
    return ordered
