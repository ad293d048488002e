# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"
"""Draws to bits in one loop, compiled: the same as `_draw.Pen`, which says what is computed.

Importing this compiles it, or loads what an earlier process has compiled.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.operators.compiled import VECTORS, compiled, write
from opferry.validation import _normal_table as table
from opferry.validation._draw import FIRST_SEGMENT, QUANTILES, SPAN, STEPS
from opferry.validation._grid import Grid

_FIRST_POSITION = table.FIRST_POSITION
_SEGMENT_SHIFT = 52 - table.SEGMENT_BITS
_FRACTION_BITS = table.FRACTION_BITS
_FRACTION_SHIFT = _SEGMENT_SHIFT - _FRACTION_BITS
_FRACTION_MASK = 2**_FRACTION_BITS - 1
_SCALE_SHIFT = table.SCALE_BITS + 3
_LAST_SEGMENT = len(QUANTILES) - 1


@intrinsic
@no_type_check
def _bits_of(typing, value):
    """Return the bits of a float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


def _signature(kind: Any) -> Any:
    draws, out = types.Array(types.uint32, 1, "C"), types.Array(kind, 1, "C")
    return types.void(draws, out, types.int64, types.int64, types.float32, out, types.boolean)


_SIGNATURES = [_signature(kind) for kind in (types.float32, types.uint16, types.int16)]


@register_jitable
@no_type_check
def _put(out, i, point, unit):
    write(out, i, np.float32(np.float64(point)) * unit)


@register_jitable
@no_type_check
def _put_ends(out, i, point, unit, first, last, ends):
    _put(out, i, point, unit)
    if point in (first, last):
        out[i] = ends[np.int64(point == last)]


@register_jitable
@no_type_check
def _uniform_point(draw, first, number):
    return first + np.int64((np.uint64(draw) * number) >> np.uint64(32))


@compiled(*_SIGNATURES)
@no_type_check
def _uniform(draws, out, first, last, unit, ends, exact):
    number = np.uint64(last - first + 1)
    if exact:  # a loop of its own: in one with a branch the elements are written one by one
        for i in range(draws.size):
            _put(out, i, _uniform_point(draws[i], first, number), unit)
        return
    for i in range(draws.size):
        _put_ends(out, i, _uniform_point(draws[i], first, number), unit, first, last, ends)


@register_jitable
@no_type_check
def _normal_point(draw, middle, width):
    position = (((draw & 0x7FFFFFFF) * SPAN) >> 31) + _FIRST_POSITION
    bits = _bits_of(np.float64(position))
    segment = min(max((bits >> _SEGMENT_SHIFT) - FIRST_SEGMENT, 0), _LAST_SEGMENT)
    fraction = (bits >> _FRACTION_SHIFT) & _FRACTION_MASK
    quantile = QUANTILES[segment] - ((STEPS[segment] * fraction) >> _FRACTION_BITS)
    distance = (quantile * width) >> _SCALE_SHIFT
    return middle - distance if draw >> 31 else middle + distance


@compiled(*_SIGNATURES)
@no_type_check
def _normal(draws, out, first, last, unit, ends, exact):
    middle, width = (first + last) // 2, last - first
    if exact:
        for i in range(draws.size):
            _put(out, i, _normal_point(np.int64(draws[i]), middle, width), unit)
        return
    for i in range(draws.size):
        point = _normal_point(np.int64(draws[i]), middle, width)
        _put_ends(out, i, point, unit, first, last, ends)


class CompiledPen:
    """Writes elements of one tensor, as `Pen` does, whose arguments these are."""

    def __init__(self, grid: Grid, dtype: DType, bounds: tuple[int, int], *, normal: bool) -> None:
        self._kernel = _normal if normal else _uniform
        self._kind = VECTORS[dtype]
        # copied as bits: a subnormal bound is not to meet any arithmetic
        ends = np.array(bounds, f"u{dtype.itemsize}").view(self._kind)
        self._fixed = grid.first, grid.last, np.float32(2.0**grid.exponent), ends, grid.is_exact

    def write(self, draws: NDArray[np.uint32], out: NDArray[Any]) -> None:
        """Write one element for each draw, for any number of them."""
        self._kernel(draws, out.view(self._kind), *self._fixed)
