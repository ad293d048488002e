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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout, RotaryMode, layout_number
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators._rotary_contract import (
    check_attributes,
    check_dtypes,
    check_pair,
    check_shapes,
)
from opferry.operators._rotary_reference import rotary_grad
from opferry.operators.base import InputSpec, Operator, OutputSpec, Plan

SYSTEM_WORKSPACE_BYTES = 16 * 1024 * 1024
"""What template A adds when grad_cos and grad_sin are computed."""

TILING_KEYS = {"BAB": 203, "AB": 204, "A": 205}
"""The tiling key of each kernel template."""


Fused = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
"""Fills outputs from inputs, both (B, S, N, D); returns whether it can, with such strides."""


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

    _fused: Fused | None = None

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
        layout = check_attributes(attributes.rotary_mode, attributes.layout)
        check_pair(inputs)
        check_dtypes(inputs)
        check_shapes({name: spec.shape for name, spec in inputs.items()}, layout)
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
        inputs = {name: _as_bsnd(arrays[name], layout) for name in plan.inputs}
        targets = {name: _as_bsnd(array, layout) for name, array in results.items()}
        if promote:
            rotary_grad(inputs, targets, np.float64)
        elif self._fused is None or not self._fused(inputs, targets):
            rotary_grad(inputs, targets, np.float32)
        return results

    def compile_reference(self, thread_count: int) -> None:
        """Take the fused loops of `_rotary_compiled`, whose results have the same bits."""
        from opferry.operators._rotary_compiled import FusedRotaryGrad

        fused = FusedRotaryGrad(thread_count)
        self._check_bits(fused)
        self._fused = fused
        self.reference_kernel = "numba-fused"

    def _check_bits(self, fused: Fused) -> None:
        """Check that compiled code does here what it is to do.

        Raises:
            ArithmeticError: if it does not; it must not be used then.
        """
        arrays, _ = self.known_answer_case()
        for dtype in DType:
            inputs = {name: array.astype(dtype.numpy) for name, array in arrays.items()}
            found, wanted = (
                {output.name: np.zeros_like(inputs[output.like]) for output in self.outputs}
                for _ in range(2)
            )
            rotary_grad(inputs, wanted, np.float32)
            if not fused(inputs, found) or any(
                found[name].tobytes() != wanted[name].tobytes() for name in wanted
            ):
                raise ArithmeticError(f"compiled for this processor, {dtype.value} comes out wrong")

    def known_answer_case(self) -> tuple[dict[str, NDArray[Any]], ApplyRotaryPosEmbGradAttributes]:
        """Two batches that share cos and sin of independent halves; more query than key heads."""

        def ramp(*shape: int) -> NDArray[Any]:
            count = int(np.prod(shape))
            # eighths between -2 and 2 that do not repeat with any axis
            steps = (np.arange(count) * 7 + len(arrays) * 5) % 33 - 16
            return (steps / 8).astype(np.float32).reshape(shape)

        arrays: dict[str, NDArray[Any]] = {}
        for name in ("grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key"):
            batch, heads = {"cos": (1, 1), "sin": (1, 1)}.get(name, (2, 2 if "key" in name else 3))
            arrays[name] = ramp(batch, 4, heads, 16)
        return arrays, ApplyRotaryPosEmbGradAttributes()

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
