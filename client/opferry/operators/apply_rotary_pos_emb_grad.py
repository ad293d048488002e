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
from typing import Any, ClassVar

from numpy.typing import NDArray

from opferry.core.layouts import Layout, RotaryMode
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators._rotary_grad_contract import check_grad
from opferry.operators._rotary_grad_reference import rotary_grad
from opferry.operators._rotary_operator import Arrays, Fused, RotaryOperator, ramps
from opferry.operators.base import InputSpec, OutputSpec, Plan

SYSTEM_WORKSPACE_BYTES = 16 * 1024 * 1024
"""What template A adds when grad_cos and grad_sin are computed."""

TILING_KEYS = {"BAB": 203, "AB": 204, "A": 205}
"""The tiling key of each kernel template."""


@dataclass(frozen=True)
class ApplyRotaryPosEmbGradAttributes:
    """The attributes of ApplyRotaryPosEmbGrad."""

    rotary_mode: str = RotaryMode.HALF.value
    """How the last axis pairs up; only "half"."""
    layout: int = int(Layout.BSND)
    """The order of the axes: 1 BSND, 2 SBND or 4 TND."""


class ApplyRotaryPosEmbGrad(RotaryOperator):
    """The operator; `APPLY_ROTARY_POS_EMB_GRAD` is its one instance."""

    name = "ApplyRotaryPosEmbGrad"
    python_name = "apply_rotary_pos_emb_grad"
    inputs = (
        InputSpec("grad_query_embed"),
        InputSpec("grad_key_embed", like="grad_query_embed"),
        InputSpec("cos"),
        InputSpec("sin", like="cos"),
        InputSpec("query", optional=True, like="grad_query_embed"),
        InputSpec("key", optional=True, like="grad_key_embed"),
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

    attributes_class = ApplyRotaryPosEmbGradAttributes
    modes = (RotaryMode.HALF,)

    def check(
        self, specs: Mapping[str, TensorSpec], attributes: ApplyRotaryPosEmbGradAttributes
    ) -> Plan:
        """Check a call in the order of the device's own host code and return its plan."""
        self.check_present(specs)
        inputs: dict[str, TensorSpec] = self.ordered(specs)
        layout = check_grad(inputs, attributes.rotary_mode, attributes.layout)
        for name, spec in inputs.items():
            check_storage(name, spec)
        return self._plan(inputs, attributes, layout)

    def compute(
        self,
        inputs: Arrays,
        outputs: Arrays,
        attributes: ApplyRotaryPosEmbGradAttributes,
        work: Any,
    ) -> None:
        """Fill the outputs by `rotary_grad`; the attributes leave nothing to choose."""
        rotary_grad(inputs, outputs, work)

    def fused(self, thread_count: int) -> Fused:
        """Return the loops of `_rotary_grad_compiled`."""
        from opferry.operators._rotary_grad_compiled import FusedRotaryGrad

        loops = FusedRotaryGrad(thread_count)
        return lambda inputs, outputs, attributes: loops(inputs, outputs)

    def known_answer_case(self) -> tuple[dict[str, NDArray[Any]], ApplyRotaryPosEmbGradAttributes]:
        """Two batches that share cos and sin of independent halves; more query than key heads."""
        query, key, table = (2, 4, 3, 16), (2, 4, 2, 16), (1, 4, 1, 16)
        shapes = {"grad_query_embed": query, "grad_key_embed": key, "cos": table, "sin": table}
        return ramps({**shapes, "query": query, "key": key}), ApplyRotaryPosEmbGradAttributes()

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
