"""What the references of the rotary operators share: one order of axes, and blocks of it.

Whatever the dtype, a block is converted to the accumulation type, each product is rounded, then
added: no fused multiply-add, so that float32 results have the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.layouts import Layout

BLOCK_ELEMENTS = 128 * 1024
"""Elements of one block; about six temporaries of it are alive at a time (3 MiB in float32)."""

Array = NDArray[Any]


def as_bsnd(array: Array, layout: Layout) -> Array:
    """Return a view with the axes (B, S, N, D); B is 1 for TND."""
    if layout is Layout.TND:
        return array[np.newaxis]
    return array.transpose([layout.axes.index(axis) for axis in "BSND"])


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Yield slices of B, S and N that together cover the shape, by about BLOCK_ELEMENTS each."""
    batch, length, heads, width = shape
    n_step = min(heads, max(1, BLOCK_ELEMENTS // width))
    s_step = min(length, max(1, BLOCK_ELEMENTS // (width * n_step)))
    b_step = min(batch, max(1, BLOCK_ELEMENTS // (width * n_step * s_step)))
    for b in range(0, batch, b_step):
        for s in range(0, length, s_step):
            for n in range(0, heads, n_step):
                yield slice(b, b + b_step), slice(s, s + s_step), slice(n, n + n_step)
