"""The contract of ApplyRotaryPosEmbGrad: one function for each group of rules.

They follow the order of the device's own host code, in which the first rule that is broken is the
one that is reported; all of them carry its status, 161002. The operator's module calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from opferry.core.dtypes import ALLOWED, DType
from opferry.core.layouts import AXIS_NAMES, Layout, RotaryMode
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec

MAX_WIDTH = 1024
"""The largest D."""

SUPPORTED_LAYOUTS = (Layout.BSND, Layout.SBND, Layout.TND)
"""The layouts that the operator serves; BNSD is reserved by the vendor."""

Shape = tuple[int, ...]


def check_attributes(mode: str, number: int) -> Layout:
    """Check rotary_mode, then the layout's number, and return the layout."""
    if mode != RotaryMode.HALF.value:
        known = mode in {item.value for item in RotaryMode}
        reason = Reason.ROTARY_MODE_NOT_SUPPORTED if known else Reason.ENUM_UNKNOWN
        said = "is not set" if mode == "" else f"is {mode[:40]!r}"
        if mode == "":
            reason = Reason.ENUM_NOT_SET
        _refuse(reason, f"rotary_mode {said}; only half is supported", "rotary_mode", mode, "half")
    allowed = ", ".join(f"{int(layout)} ({layout.name})" for layout in SUPPORTED_LAYOUTS)
    if number == 0:
        _refuse(
            Reason.ENUM_NOT_SET, f"layout is not set; give {allowed}", "layout", number, allowed
        )
    if number == Layout.BNSD:
        _refuse(
            Reason.LAYOUT_NOT_SUPPORTED,
            f"layout 3 (BNSD) is reserved and not supported; give {allowed}",
            "layout",
            number,
            allowed,
        )
    if number not in SUPPORTED_LAYOUTS:
        _refuse(
            Reason.ENUM_UNKNOWN,
            f"layout {number} is unknown; give {allowed}",
            "layout",
            number,
            allowed,
        )
    return Layout(number)


def check_pair(inputs: Mapping[str, TensorSpec]) -> None:
    """Check that query and key are given together or not at all."""
    if ("query" in inputs) != ("key" in inputs):
        given, absent = ("query", "key") if "query" in inputs else ("key", "query")
        _refuse(
            Reason.INPUT_MISSING,
            f"{given} is given without {absent}; give both, for grad_cos and grad_sin, or neither",
            absent,
        )


def check_dtypes(inputs: Mapping[str, TensorSpec]) -> None:
    """Check that all tensors have the dtype of grad_query_embed."""
    first: DType = inputs["grad_query_embed"].dtype
    for name, spec in inputs.items():
        if spec.dtype is not first:
            _refuse(
                Reason.DTYPE_NOT_ALLOWED,
                f"{name} has dtype {spec.dtype.value}, grad_query_embed has {first.value}; all "
                f"tensors need one dtype of {ALLOWED}: convert {name}",
                name,
                spec.dtype.value,
                first.value,
            )


def check_shapes(shapes: Mapping[str, Shape], layout: Layout) -> None:
    """Check all shapes, by the tensors' names, from the number of axes on."""
    _check_equal_shapes(shapes)
    _check_widths(shapes)
    _check_layout(shapes, layout)
    _check_cos(shapes["grad_query_embed"], shapes["cos"], layout)


def _check_equal_shapes(shapes: Mapping[str, Shape]) -> None:
    cos, sin = shapes["cos"], shapes["sin"]
    for name, shape in shapes.items():
        if len(shape) not in (3, 4):
            _shape(name, shape, f"has {_axes(shape)}; every layout needs 3 or 4", "3 or 4 axes")
    if sin != cos:
        _shape("sin", sin, f"has shape {list(sin)}, cos has {list(cos)}; they must be equal", cos)
    for name, like in (("query", "grad_query_embed"), ("key", "grad_key_embed")):
        if name in shapes and shapes[name] != shapes[like]:
            _shape(
                name,
                shapes[name],
                f"has shape {list(shapes[name])}, {like} has {list(shapes[like])}; they must be "
                "equal",
                shapes[like],
            )
    for name in ("grad_query_embed", "grad_key_embed"):
        if len(shapes[name]) != len(cos):
            _shape(
                name,
                shapes[name],
                f"has {_axes(shapes[name])}, cos has {len(cos)}; every tensor needs the same "
                "number",
                f"{len(cos)} axes",
            )


def _check_widths(shapes: Mapping[str, Shape]) -> None:
    query = shapes["grad_query_embed"]
    width = query[-1]
    for name, shape in shapes.items():
        if shape[-1] != width:
            _shape(
                name,
                shape,
                f"has width D = {shape[-1]} (last axis), grad_query_embed has {width}; D must be "
                "the same in every tensor",
                f"D = {width}",
            )
    if width > MAX_WIDTH:
        _shape(
            "grad_query_embed", query, f"has width D = {width}; D is at most {MAX_WIDTH}", MAX_WIDTH
        )
    if width % 2:
        _shape("grad_query_embed", query, f"has width D = {width}; D must be even", "even D")


def _check_layout(shapes: Mapping[str, Shape], layout: Layout) -> None:
    query, key = shapes["grad_query_embed"], shapes["grad_key_embed"]
    # N is the last axis but one in every layout that is served
    if key[:-2] + key[-1:] != query[:-2] + query[-1:]:
        _shape(
            "grad_key_embed",
            key,
            f"has shape {list(key)}, grad_query_embed has {list(query)}; they may differ in the "
            "head axis N only",
            query,
        )
    for name, shape in shapes.items():
        if min(shape) <= 0:
            _shape(name, shape, f"has shape {list(shape)}; no axis may be 0 or less", "at least 1")
    for name, shape in shapes.items():
        if len(shape) != len(layout.axes):
            words = ", ".join(AXIS_NAMES[axis] for axis in layout.axes)
            _shape(
                name,
                shape,
                f"has {_axes(shape)}; layout {layout.name} needs {len(layout.axes)} ({words})",
                f"{len(layout.axes)} axes",
            )


def _check_cos(query: Shape, cos: Shape, layout: Layout) -> None:
    sizes = dict(zip(layout.axes, query, strict=True))
    cos_sizes = dict(zip(layout.axes, cos, strict=True))
    if cos_sizes["N"] != 1:
        _shape(
            "cos",
            cos,
            f"has {cos_sizes['N']} on the head axis N (shape {list(cos)}); it must be 1",
            "N = 1",
        )
    order = {Layout.BSND: "SB", Layout.SBND: "BS", Layout.TND: "T"}[layout]
    for axis in order:
        allowed = {1, sizes[axis]} if axis == "B" else {sizes[axis]}
        if cos_sizes[axis] not in allowed:
            choice = " or ".join(str(size) for size in sorted(allowed))
            _shape(
                "cos",
                cos,
                f"has {cos_sizes[axis]} on the {AXIS_NAMES[axis]} axis {axis} (shape {list(cos)}); "
                f"grad_query_embed has shape {list(query)}, so with layout {layout.name} it must "
                f"be {choice}",
                f"{axis} = {choice}",
            )


def _axes(shape: Shape) -> str:
    return "1 axis" if len(shape) == 1 else f"{len(shape)} axes"


def _shape(name: str, shape: Shape, said: str, allowed: object) -> NoReturn:
    _refuse(Reason.SHAPE_MISMATCH, f"{name} {said}", name, list(shape), allowed)


def _refuse(
    reason: Reason, message: str, argument: str, given: object = None, allowed: object = None
) -> NoReturn:
    raise Problem(
        reason,
        message,
        argument=argument,
        given=None if given is None else str(given),
        allowed=None if allowed is None else str(allowed),
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
    )
