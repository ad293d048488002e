"""The contract of ApplyRotaryPosEmbGrad, in the order of the device's own host code."""

from __future__ import annotations

from collections.abc import Mapping

from opferry.core.layouts import Layout, RotaryMode
from opferry.core.problems import Reason
from opferry.core.tensors import TensorSpec
from opferry.operators._rotary_rules import (
    Shapes,
    axes_text,
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
    refuse,
    refuse_shape,
)

SUPPORTED_LAYOUTS = (Layout.BSND, Layout.SBND, Layout.TND)
"""The layouts that the operator serves; BNSD is reserved by the vendor."""

LEADER = "grad_query_embed"
"""The input by which the others are measured."""


def check_grad(inputs: Mapping[str, TensorSpec], mode: str, number: int) -> Layout:
    """Check a call and return its layout.

    Args:
        inputs: those that are present, in the operator's order.
        mode: rotary_mode.
        number: the layout's number.

    Raises:
        Problem: the first rule that is broken.
    """
    check_rotary_mode(mode, (RotaryMode.HALF,))
    layout = check_layout_number(number, SUPPORTED_LAYOUTS)
    _check_pair(inputs)
    check_dtypes(inputs)
    shapes = {name: spec.shape for name, spec in inputs.items()}
    check_axis_counts(shapes)
    check_equal(shapes, (("sin", "cos"), ("query", LEADER), ("key", "grad_key_embed")))
    _check_ranks(shapes)
    _check_widths(shapes)
    check_width(LEADER, shapes[LEADER], 2)
    _check_key(shapes)
    check_extents(shapes)
    check_layout_axes(shapes, layout)
    check_one_head(shapes["cos"], layout)
    for axis in {Layout.BSND: "SB", Layout.SBND: "BS", Layout.TND: "T"}[layout]:
        check_axis(shapes, "cos", LEADER, layout, axis)
    return layout


def _check_pair(inputs: Mapping[str, TensorSpec]) -> None:
    if ("query" in inputs) != ("key" in inputs):
        given, absent = ("query", "key") if "query" in inputs else ("key", "query")
        refuse(
            Reason.INPUT_MISSING,
            f"{given} is given without {absent}; give both, for grad_cos and grad_sin, or neither",
            absent,
        )


def _check_ranks(shapes: Shapes) -> None:
    cos = shapes["cos"]
    for name in (LEADER, "grad_key_embed"):
        if len(shapes[name]) != len(cos):
            refuse_shape(
                name,
                shapes[name],
                f"has {axes_text(shapes[name])}, cos has {len(cos)}; every tensor needs the same "
                "number",
                f"{len(cos)} axes",
            )


def _check_widths(shapes: Shapes) -> None:
    width = shapes[LEADER][-1]
    for name, shape in shapes.items():
        if shape[-1] != width:
            refuse_shape(
                name,
                shape,
                f"has width D = {shape[-1]} (last axis), {LEADER} has {width}; D must be "
                "the same in every tensor",
                f"D = {width}",
            )


def _check_key(shapes: Shapes) -> None:
    query, key = shapes[LEADER], shapes["grad_key_embed"]
    # N is the last axis but one in every layout that is served
    if key[:-2] + key[-1:] != query[:-2] + query[-1:]:
        refuse_shape(
            "grad_key_embed",
            key,
            f"has shape {list(key)}, {LEADER} has {list(query)}; they may differ in the "
            "head axis N only",
            query,
        )
