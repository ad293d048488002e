"""The arithmetic of rotary position embedding, in blocks that stay in the processor's cache.

All arrays are views with the axes (B, S, N, D). In each mode the rotated elements pair up: a row is
groups of two runs, and an element of a group's first run goes with the one at the same place of the
second. rot(x) has the second, negated, in place of the first, and the first in place of the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opferry.core.layouts import RotaryMode
from opferry.operators._rotary_blocks import Array, blocks


def group_count(mode: str, width: int) -> int:
    """Return in how many groups a mode divides the rotated elements of a row.

    half pairs up i and i + width/2; quarter does so within each half; interleave pairs up 2i and
    2i + 1.
    """
    return {RotaryMode.HALF: 1, RotaryMode.QUARTER: 2, RotaryMode.INTERLEAVE: width // 2}[
        RotaryMode(mode)
    ]


def rotate(inputs: Mapping[str, Array], outputs: Mapping[str, Array], mode: str, work: Any) -> None:
    """Fill the outputs of ApplyRotaryPosEmb.

    Args:
        inputs: query and key, each (B, S, N, D), cos and sin (1 or B, S, 1, R); R is at most D.
        outputs: query_out and key_out; written in place, rounded to their own dtype.
        mode: rotary_mode.
        work: numpy.float32 or numpy.float64, the type of all arithmetic.
    """
    # Infinities and NaN are ordinary data here, and so are sums that overflow.
    with np.errstate(all="ignore"):
        for name in ("query", "key"):
            _rotate(inputs[name], inputs["cos"], inputs["sin"], outputs[f"{name}_out"], mode, work)


def _rotate(x: Array, cos: Array, sin: Array, result: Array, mode: str, work: Any) -> None:
    rotated = cos.shape[-1]
    groups = group_count(mode, rotated)
    cos_full, sin_full = (np.broadcast_to(a, (x.shape[0], *a.shape[1:])) for a in (cos, sin))
    for b, s, n in blocks(x.shape):
        x1, x2 = _runs(x[b, s, n, :rotated].astype(work, copy=False), groups)
        c1, c2 = _runs(cos_full[b, s].astype(work, copy=False), groups)
        s1, s2 = _runs(sin_full[b, s].astype(work, copy=False), groups)
        y1, y2 = _runs(result[b, s, n, :rotated], groups)
        y1[...] = x1 * c1 - x2 * s1
        y2[...] = x2 * c2 + x1 * s2
        # what lies behind the width of cos is passed on as it is
        result[b, s, n, rotated:] = x[b, s, n, rotated:]


def _runs(rows: Array, groups: int) -> tuple[Array, Array]:
    """Return views of the first and of the second runs of all groups."""
    split = rows.reshape(*rows.shape[:-1], groups, 2, -1)
    return split[..., 0, :], split[..., 1, :]
