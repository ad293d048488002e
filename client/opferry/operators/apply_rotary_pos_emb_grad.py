"""ApplyRotaryPosEmbGrad: the backward of rotary position embedding, mode "half".

Contract, formulas, templates and workspace follow the vendor's document of
aclnnApplyRotaryPosEmbGrad (CANN ops-transformer, posembedding/apply_rotary_pos_emb_grad). With the
subscripts 1 and 2 for the first and second half of the last axis:

    grad_query = cat(cos1*gq1 + sin2*gq2, cos2*gq2 - sin1*gq1)      grad_key likewise
    grad_cos   = sum(gq*query      + gk*key)
    grad_sin   = sum(gq*rot(query) + gk*rot(key))                    rot(x) = cat(-x2, x1)

The sums run over every axis where cos has 1 and the gradients have more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import ALLOWED, DType
from opferry.core.layouts import AXIS_NAMES, Layout, RotaryMode, layout_number
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators._rotary_reference import rotary_grad
from opferry.operators.base import InputSpec, Operator, OutputSpec, Plan

MAX_WIDTH = 1024
"""The largest D."""

SYSTEM_WORKSPACE_BYTES = 16 * 1024 * 1024
"""What template A adds when grad_cos and grad_sin are computed."""

TILING_KEYS = {"BAB": 203, "AB": 204, "A": 205}
"""The tiling key of each kernel template."""

SUPPORTED_LAYOUTS = (Layout.BSND, Layout.SBND, Layout.TND)
"""The layouts that the operator serves; BNSD is reserved by the vendor."""


@dataclass(frozen=True)
class ApplyRotaryPosEmbGradAttributes:
    """The attributes of ApplyRotaryPosEmbGrad."""

    rotary_mode: str = RotaryMode.HALF.value
    """How the last axis pairs up; only "half"."""
    layout: int = int(Layout.BSND)
    """The order of the axes: 1 BSND, 2 SBND or 4 TND."""


class ApplyRotaryPosEmbGrad(Operator):
    """The operator; `APPLY_ROTARY_POS_EMB_GRAD` is its one instance."""

    name = "ApplyRotaryPosEmbGrad"
    python_name = "apply_rotary_pos_emb_grad"
    inputs = (
        InputSpec("grad_query_embed"),
        InputSpec("grad_key_embed"),
        InputSpec("cos"),
        InputSpec("sin"),
        InputSpec("query", optional=True),
        InputSpec("key", optional=True),
    )
    outputs = (
        OutputSpec("grad_query", "dq", like="grad_query_embed"),
        OutputSpec("grad_key", "dk", like="grad_key_embed"),
        OutputSpec("grad_cos", "dcos", like="cos", requires=("query", "key")),
        OutputSpec("grad_sin", "dsin", like="sin", requires=("query", "key")),
    )
    attribute_names: ClassVar = {
        "rotary_mode": "rotary_mode",
        "rotaryModeOptional": "rotary_mode",
        "layout": "layout",
    }

    def parse_attributes(self, given: Mapping[str, Any]) -> ApplyRotaryPosEmbGradAttributes:
        """Return the attributes; a rotary_mode of None means "half", a layout of None means 1."""
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self.attribute_names:
                raise self.unknown_attribute(name)
            meant = self.attribute_names[name]
            if meant in values and value is not None and values[meant] != value:
                raise self.given_twice(name)
            if value is not None:
                values[meant] = value
        mode = values.get("rotary_mode", RotaryMode.HALF.value)
        if not isinstance(mode, str):
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"rotary_mode is a {type(mode).__name__}; give a word, such as half",
                argument="rotary_mode",
                given=repr(mode)[:40],
                aclnn_status=ACLNN_ERR_PARAM_INVALID,
            )
        # an Enum's own text is its class and name; a plain word is wanted
        word = mode.value if isinstance(mode, RotaryMode) else mode
        return ApplyRotaryPosEmbGradAttributes(word, layout_number(values.get("layout", 1)))

    def check(
        self, specs: Mapping[str, TensorSpec], attributes: ApplyRotaryPosEmbGradAttributes
    ) -> Plan:
        """Check a call in the order of the device's own host code and return its plan."""
        self.check_present(specs)
        inputs: dict[str, TensorSpec] = self.ordered(specs)
        layout = _check_attributes(attributes)
        _check_pair(inputs)
        _check_dtypes(inputs)
        _check_shapes({name: spec.shape for name, spec in inputs.items()}, layout)
        for name, spec in inputs.items():
            check_storage(name, spec)
        return self._plan(inputs, attributes, layout)

    def reference(
        self,
        arrays: Mapping[str, NDArray[Any]],
        plan: Plan,
        *,
        outputs: Mapping[str, NDArray[Any]] | None = None,
        promote: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Compute in float32 whatever the dtype, with one rounding to the dtype at the end."""
        results = {
            name: np.empty(spec.shape, np.float64 if promote else spec.dtype.numpy)
            if outputs is None
            else outputs[name]
            for name, spec in plan.outputs.items()
        }
        layout = Layout(plan.attributes.layout)
        rotary_grad(
            {name: _as_bsnd(arrays[name], layout) for name in plan.inputs},
            {name: _as_bsnd(array, layout) for name, array in results.items()},
            np.float64 if promote else np.float32,
        )
        return results

    def _plan(
        self,
        inputs: dict[str, TensorSpec],
        attributes: ApplyRotaryPosEmbGradAttributes,
        layout: Layout,
    ) -> Plan:
        sizes = dict(zip(layout.axes, inputs["grad_query_embed"].shape, strict=True))
        cos_sizes = dict(zip(layout.axes, inputs["cos"].shape, strict=True))
        key_heads = inputs["grad_key_embed"].shape[layout.axes.index("N")]
        heads = max(sizes["N"], key_heads)
        broadcast = tuple(
            position
            for position, axis in enumerate(layout.axes)
            if (axis == "N" and heads > 1) or (axis == "B" and cos_sizes["B"] < sizes["B"])
        )
        template = _template(layout, sizes, cos_sizes, heads)
        wants_cos = "query" in inputs
        dtype = inputs["grad_query_embed"].dtype
        width = 4 if wants_cos and template != "A" else dtype.itemsize
        rows = sizes["T"] if layout is Layout.TND else sizes["B"] * sizes["S"]
        workspace = rows * heads * sizes["D"] * width * 2
        if template == "A" and wants_cos:
            workspace += SYSTEM_WORKSPACE_BYTES
        return Plan(
            operator=self,
            attributes=attributes,
            inputs=inputs,
            outputs=self.infer_specs(inputs),
            broadcast_axes=broadcast,
            template=template,
            tiling_key=TILING_KEYS[template],
            workspace_bytes=workspace,
        )


APPLY_ROTARY_POS_EMB_GRAD = ApplyRotaryPosEmbGrad()
"""The operator."""


def _template(
    layout: Layout, sizes: Mapping[str, int], cos_sizes: Mapping[str, int], heads: int
) -> str:
    """Return the kernel template by the vendor's rule."""
    full_cos = layout is Layout.TND or cos_sizes["B"] == sizes["B"]
    if heads == 1 and full_cos:
        return "A"
    if layout is Layout.SBND or (layout is Layout.BSND and cos_sizes["B"] > 1):
        return "AB"
    return "BAB"


def _as_bsnd(array: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return a view with the axes (B, S, N, D)."""
    if layout is Layout.TND:
        return array[np.newaxis]
    return array.swapaxes(0, 1) if layout is Layout.SBND else array


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


def _check_attributes(attributes: ApplyRotaryPosEmbGradAttributes) -> Layout:
    mode = attributes.rotary_mode
    if mode != RotaryMode.HALF.value:
        known = mode in {item.value for item in RotaryMode}
        reason = Reason.ROTARY_MODE_NOT_SUPPORTED if known else Reason.ENUM_UNKNOWN
        said = "is not set" if mode == "" else f"is {mode[:40]!r}"
        if mode == "":
            reason = Reason.ENUM_NOT_SET
        _refuse(reason, f"rotary_mode {said}; only half is supported", "rotary_mode", mode, "half")
    number = attributes.layout
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


def _check_pair(inputs: Mapping[str, TensorSpec]) -> None:
    if ("query" in inputs) != ("key" in inputs):
        given, absent = ("query", "key") if "query" in inputs else ("key", "query")
        _refuse(
            Reason.INPUT_MISSING,
            f"{given} is given without {absent}; give both, for grad_cos and grad_sin, or neither",
            absent,
        )


def _check_dtypes(inputs: Mapping[str, TensorSpec]) -> None:
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


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], layout: Layout) -> None:
    """The device's order from the number of axes on."""
    query, key = shapes["grad_query_embed"], shapes["grad_key_embed"]
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
    _check_cos(query, cos, layout)


def _check_cos(query: tuple[int, ...], cos: tuple[int, ...], layout: Layout) -> None:
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


def _axes(shape: tuple[int, ...]) -> str:
    return "1 axis" if len(shape) == 1 else f"{len(shape)} axes"


def _shape(name: str, shape: tuple[int, ...], said: str, allowed: object) -> NoReturn:
    _refuse(Reason.SHAPE_MISMATCH, f"{name} {said}", name, list(shape), allowed)
