"""The contract of ApplyRotaryPosEmb for Ascend 950, in the order of the device's own host code.

The vendor's sources are the document of aclnnApplyRotaryPosEmbV2, the one of the PyTorch function,
and the checks before tiling. Where they leave something open, the stricter reading is taken:

- the checks never compare a layout with the number of axes; the documents give 3 for TND and 4 for
  the others, so that is asked for before any axis is looked at;
- the checks let a key be narrower than the query; the documents want the same D;
- nobody says whether the width of cos has to be a multiple of 2, or 4, as D has; what is rotated is
  that width, and no odd one can be paired up;
- an older document lets tensors be empty; the checks and the newer one do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from opferry.core.layouts import Layout, RotaryMode
from opferry.core.tensors import TensorSpec
from opferry.operators._rotary_rules import (
    Shapes,
    check_axis,
    check_axis_counts,
    check_dtypes,
    check_equal,
    check_extents,
    check_layout_axes,
    check_layout_number,
    check_one_head,
    check_rotary_mode,
    check_width,
    refuse_shape,
)

WIDTH_MULTIPLES = {RotaryMode.HALF: 2, RotaryMode.INTERLEAVE: 2, RotaryMode.QUARTER: 4}
"""What D, and the width of cos, is a multiple of in each mode."""


def check_forward(inputs: Mapping[str, TensorSpec], mode: str, number: int) -> Layout:
    """Check a call and return its layout.

    Args:
        inputs: all of them, in the operator's order.
        mode: rotary_mode.
        number: the layout's number.

    Raises:
        Problem: the first rule that is broken.
    """
    layout = check_layout_number(number, tuple(Layout))
    check_rotary_mode(mode, tuple(RotaryMode))
    check_dtypes(inputs)
    shapes = {name: spec.shape for name, spec in inputs.items()}
    check_axis_counts(shapes)
    check_layout_axes(shapes, layout)
    check_equal(shapes, (("sin", "cos"),))
    check_one_head(shapes["cos"], layout)
    sequence = "T" if layout is Layout.TND else "S"
    for name in ("cos", "key"):
        check_axis(shapes, name, "query", layout, sequence)
    _check_widths(shapes)
    if layout is not Layout.TND:
        for name in ("key", "cos"):
            check_axis(shapes, name, "query", layout, "B")
    multiple = WIDTH_MULTIPLES[RotaryMode(mode)]
    for name in ("query", "cos"):
        check_width(name, shapes[name], multiple, f" with rotary_mode {mode}")
    check_extents(shapes)
    return layout


def _check_widths(shapes: Shapes) -> None:
    width = shapes["query"][-1]
    if shapes["cos"][-1] > width:
        refuse_shape(
            "cos",
            shapes["cos"],
            f"has width D = {shapes['cos'][-1]} (last axis), query has {width}; it rotates as many "
            "elements as it has itself, at most those of query",
            f"D up to {width}",
        )
    if shapes["key"][-1] != width:
        refuse_shape(
            "key",
            shapes["key"],
            f"has width D = {shapes['key'][-1]} (last axis), query has {width}; D must be the same "
            "in both",
            f"D = {width}",
        )
