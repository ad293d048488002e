"""Draws to bits: what a block of 32-bit draws becomes on a grid.

Integer arithmetic, conversions, one float addition and one float multiplication by a power of two;
all are exact but one conversion, and that one rounds to nearest, ties to even. No operation takes
or gives a subnormal float: a library in the process may have set the thread to flush those to zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation import _normal_table as table
from opferry.validation._grid import Grid
from opferry.validation.rounding import FORMATS

if TYPE_CHECKING:
    from opferry.validation._draw_compiled import CompiledPen

CHUNK = 16 * 1024
"""Elements at once: the temporaries, up to 128 KiB each, stay in a core's second cache."""

SPAN = 2**32 - table.FIRST_POSITION
FIRST_SEGMENT = (1023 + table.FIRST_OCTAVE) << table.SEGMENT_BITS
QUANTILES = np.array(table.QUANTILES[:-1], np.int64)
STEPS = QUANTILES - np.array(table.QUANTILES[1:], np.int64)

_SINGLE = FORMATS[DType.FLOAT32]
_HIDDEN = 2**23


def pen(grid: Grid, dtype: DType, bounds: tuple[int, int], *, normal: bool) -> Pen | CompiledPen:
    """Return the fastest pen there is for a tensor; the arguments are those of `Pen`."""
    if _compiled is not None and grid.exponent >= _SINGLE.min_exponent:
        return _compiled(grid, dtype, bounds, normal=normal)
    return Pen(grid, dtype, bounds, normal=normal)


def compile_pens() -> None:
    """Let `pen` return compiled ones from now on, which write the same bits.

    Raises:
        Exception: whatever keeps them from being compiled.
    """
    global _compiled
    from opferry.validation._draw_compiled import CompiledPen

    _compiled = CompiledPen


_compiled: type[CompiledPen] | None = None


class Pen:
    """Writes elements of one tensor; for one thread at a time."""

    def __init__(self, grid: Grid, dtype: DType, bounds: tuple[int, int], *, normal: bool) -> None:
        """Prepare the temporaries.

        Args:
            grid: where the values lie.
            dtype: their dtype.
            bounds: the bits of the lower and of the upper bound.
            normal: draw from the normal distribution, else from the uniform one.
        """
        self._grid = grid
        self._dtype = dtype
        self._bounds = bounds
        self._normal = normal
        self._wide = np.empty(CHUNK, np.uint64)
        self._points = np.empty(CHUNK, np.float64)
        self._single = np.empty(CHUNK, np.float32)
        self._index = np.empty(CHUNK if normal else 0, np.int64)
        self._step = np.empty(CHUNK if normal else 0, np.int64)

    def write(self, draws: NDArray[np.uint32], out: NDArray[Any]) -> None:
        """Write one element for each draw.

        Args:
            draws: shape (n,), n up to CHUNK.
            out: shape (n,), unsigned integers of the dtype's size; receives the elements' bits.
        """
        count = draws.size
        wide, points = self._wide[:count], self._points[:count]
        if self._normal:
            self._normal_points(draws, wide, points)
        else:
            self._uniform_points(draws, wide, points)
        if self._dtype is DType.FLOAT32:
            self._scale(points, out.view(np.float32))
        else:
            single = self._single[:count]
            self._scale(points, single)
            if self._dtype is DType.FLOAT16:
                # the grid's unit is at least 2^-24: nothing here is subnormal in float32
                out.view(np.float16)[:] = single
            else:
                _to_bfloat16(single.view(np.uint32), out)
        if not self._grid.is_exact:
            for point, bits in zip((self._grid.first, self._grid.last), self._bounds, strict=True):
                np.copyto(out, out.dtype.type(bits), where=points == point)

    def _uniform_points(
        self, draws: NDArray[np.uint32], wide: NDArray[np.uint64], points: NDArray[np.float64]
    ) -> None:
        """Point first + floor(draw * number of points / 2^32)."""
        number = np.uint64(self._grid.last - self._grid.first + 1)
        np.multiply(draws, number, out=wide, dtype=np.uint64)
        upper_half = wide.view(np.uint32)[1::2]
        np.add(upper_half, np.float64(self._grid.first), out=points, dtype=np.float64)

    def _normal_points(
        self, draws: NDArray[np.uint32], wide: NDArray[np.uint64], points: NDArray[np.float64]
    ) -> None:
        """The middle point, and a quantile times an eighth of the width to the draw's side."""
        index, step = self._index[: draws.size], self._step[: draws.size]
        signed, bits = wide.view(np.int64), points.view(np.int64)
        np.bitwise_and(draws, np.uint32(2**31 - 1), out=wide, dtype=np.uint64)
        signed *= SPAN
        signed >>= 31
        signed += table.FIRST_POSITION
        points[:] = signed
        # the float's exponent and first bits are the segment, the next ones the place within
        np.right_shift(bits, 52 - table.SEGMENT_BITS, out=index)
        index -= FIRST_SEGMENT
        bits >>= 52 - table.SEGMENT_BITS - table.FRACTION_BITS
        bits &= 2**table.FRACTION_BITS - 1
        np.take(STEPS, index, out=step, mode="clip")
        step *= bits
        step >>= table.FRACTION_BITS
        np.take(QUANTILES, index, out=signed, mode="clip")
        signed -= step
        signed *= self._grid.last - self._grid.first
        signed >>= table.SCALE_BITS + 3
        points[:] = signed
        np.bitwise_and(draws, np.uint32(2**31), out=wide, dtype=np.uint64)
        signed <<= 32
        bits |= signed
        points += float((self._grid.first + self._grid.last) // 2)

    def _scale(self, points: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Write points * 2^exponent in float32, rounded once."""
        out[:] = points
        exponent = self._grid.exponent
        if exponent >= _SINGLE.min_exponent:
            out *= np.float32(2.0**exponent)
            return
        bits = out.view(np.uint32)
        signs = bits & np.uint32(2**31)
        # as a count of the least subnormal value; below 2^23 the count is the bits
        magnitudes = np.minimum(np.abs(points), _HIDDEN).astype(np.int64)
        magnitudes <<= exponent - _SINGLE.least_exponent
        normal = bits.astype(np.int64) & (2**31 - 1)
        normal += exponent << 23
        bits[:] = np.where(magnitudes < _HIDDEN, magnitudes, normal)
        bits |= signs


def _to_bfloat16(single: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round the bits of finite float32 values to bfloat16: to nearest, ties to even, in integers.

    Args:
        single: shape (n,); overwritten.
        out: shape (n,).
    """
    odd = single >> np.uint32(16)
    odd &= np.uint32(1)
    single += odd
    single += np.uint32(0x7FFF)
    single >>= np.uint32(16)
    out[:] = single
