"""The rules that the rotary operators share, each a function; their contracts say in which order.

The first rule that is broken is the one that is reported. All of them carry the status 161002.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from opferry.core.dtypes import ALLOWED, DType
from opferry.core.layouts import AXIS_NAMES, Layout, RotaryMode
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec

MAX_WIDTH = 1024
"""The largest D."""

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def check_rotary_mode(mode: str, supported: Sequence[RotaryMode]) -> None:
    """Check that a rotary mode is one of those that are supported."""
    words = [item.value for item in supported]
    if mode in words:
        return
    known = mode in {item.value for item in RotaryMode}
    reason = Reason.ROTARY_MODE_NOT_SUPPORTED if known else Reason.ENUM_UNKNOWN
    said = f"is {mode[:40]!r}"
    if mode == "":
        reason, said = Reason.ENUM_NOT_SET, "is not set"
    *most, last = words
    allowed = f"{', '.join(most)} and {last} are" if most else f"only {last} is"
    refuse(
        reason,
        f"rotary_mode {said}; {allowed} supported",
        "rotary_mode",
        mode,
        ", ".join(words),
    )


def check_layout_number(number: int, supported: Sequence[Layout]) -> Layout:
    """Check that a layout's number is one of those that are supported, and return the layout."""
    allowed = ", ".join(f"{int(layout)} ({layout.name})" for layout in supported)
    if number not in supported:
        reason, said = Reason.ENUM_UNKNOWN, f"layout {number} is unknown"
        if number == 0:
            reason, said = Reason.ENUM_NOT_SET, "layout is not set"
        elif number in [int(layout) for layout in Layout]:
            reason = Reason.LAYOUT_NOT_SUPPORTED
            said = f"layout {number} ({Layout(number).name}) is reserved and not supported"
        refuse(reason, f"{said}; give {allowed}", "layout", number, allowed)
    return Layout(number)


def check_dtypes(inputs: Mapping[str, TensorSpec]) -> None:
    """Check that all tensors have the dtype of the first."""
    (leader, *_) = inputs
    first: DType = inputs[leader].dtype
    for name, spec in inputs.items():
        if spec.dtype is not first:
            refuse(
                Reason.DTYPE_NOT_ALLOWED,
                f"{name} has dtype {spec.dtype.value}, {leader} has {first.value}; all "
                f"tensors need one dtype of {ALLOWED}: convert {name}",
                name,
                spec.dtype.value,
                first.value,
            )


def check_axis_counts(shapes: Shapes) -> None:
    """Check that each tensor has as many axes as some layout."""
    for name, shape in shapes.items():
        if len(shape) not in (3, 4):
            refuse_shape(
                name, shape, f"has {axes_text(shape)}; every layout needs 3 or 4", "3 or 4 axes"
            )


def check_layout_axes(shapes: Shapes, layout: Layout) -> None:
    """Check that each tensor has the axes of the layout."""
    for name, shape in shapes.items():
        if len(shape) != len(layout.axes):
            words = ", ".join(AXIS_NAMES[axis] for axis in layout.axes)
            refuse_shape(
                name,
                shape,
                f"has {axes_text(shape)}; layout {layout.name} needs {len(layout.axes)} ({words})",
                f"{len(layout.axes)} axes",
            )


def check_equal(shapes: Shapes, pairs: Iterable[tuple[str, str]]) -> None:
    """Check that the tensors of each pair that are there have equal shapes."""
    for name, like in pairs:
        if name in shapes and shapes[name] != shapes[like]:
            refuse_shape(
                name,
                shapes[name],
                f"has shape {list(shapes[name])}, {like} has {list(shapes[like])}; they must be "
                "equal",
                shapes[like],
            )


def check_width(name: str, shape: Shape, multiple: int, why: str = "") -> None:
    """Check that D, the last axis, is not too large, and a multiple; *why* follows the text."""
    width = shape[-1]
    if width > MAX_WIDTH:
        refuse_shape(name, shape, f"has width D = {width}; D is at most {MAX_WIDTH}", MAX_WIDTH)
    if width % multiple:
        must = "even" if multiple == 2 else f"a multiple of {multiple}"
        refuse_shape(name, shape, f"has width D = {width}; D must be {must}{why}", f"{must} D")


def check_extents(shapes: Shapes) -> None:
    """Check that no axis of any tensor is empty."""
    for name, shape in shapes.items():
        if min(shape) <= 0:
            refuse_shape(
                name, shape, f"has shape {list(shape)}; no axis may be 0 or less", "at least 1"
            )


def check_one_head(cos: Shape, layout: Layout) -> None:
    """Check that cos has 1 on the head axis."""
    heads = cos[layout.axes.index("N")]
    if heads != 1:
        refuse_shape(
            "cos", cos, f"has {heads} on the head axis N (shape {list(cos)}); it must be 1", "N = 1"
        )


def check_axis(shapes: Shapes, name: str, leader: str, layout: Layout, axis: str) -> None:
    """Check that a tensor has on an axis what the leader has; cos may have 1 on B."""
    shape, position = shapes[name], layout.axes.index(axis)
    allowed = {shapes[leader][position]}
    if axis == "B" and name == "cos":
        allowed.add(1)
    if shape[position] in allowed:
        return
    choice = " or ".join(str(size) for size in sorted(allowed))
    refuse_shape(
        name,
        shape,
        f"has {shape[position]} on the {AXIS_NAMES[axis]} axis {axis} (shape {list(shape)}); "
        f"{leader} has shape {list(shapes[leader])}, so with layout {layout.name} it must "
        f"be {choice}",
        f"{axis} = {choice}",
    )


def axes_text(shape: Shape) -> str:
    """Return how many axes a shape has, in words."""
    return "1 axis" if len(shape) == 1 else f"{len(shape)} axes"


def refuse_shape(name: str, shape: Shape, said: str, allowed: object) -> NoReturn:
    """Refuse a tensor's shape; *said* follows its name."""
    refuse(Reason.SHAPE_MISMATCH, f"{name} {said}", name, list(shape), allowed)


def refuse(
    reason: Reason, message: str, argument: str, given: object = None, allowed: object = None
) -> NoReturn:
    """Refuse an argument.

    Raises:
        Problem: always.
    """
    raise Problem(
        reason,
        message,
        argument=argument,
        given=None if given is None else str(given),
        allowed=None if allowed is None else str(allowed),
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
    )
