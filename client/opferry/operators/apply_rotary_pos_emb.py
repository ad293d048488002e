"""ApplyRotaryPosEmb: rotary position embedding of query and key, the forward operator.

Contract, formulas and templates follow the vendor's documents of aclnnApplyRotaryPosEmbV2 and of
the PyTorch function (CANN ops-transformer, posembedding/apply_rotary_pos_emb), for Ascend 950:

    query_out = query*cos + rot(query)*sin      key_out likewise

    half        rot(x) = cat(-x2, x1)              1, 2: the halves of the last axis
    quarter     rot(x) = cat(-x2, x1, -x4, x3)     1 to 4: its quarters
    interleave  rot(x)[2i] = -x[2i+1], rot(x)[2i+1] = x[2i]

Where the last axis of cos and sin is shorter, only as many elements of query and key are rotated,
from the first on, with halves and quarters of that length; the others are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from opferry.core.layouts import Layout, RotaryMode
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators._rotary_forward_contract import check_forward
from opferry.operators._rotary_forward_reference import rotate
from opferry.operators._rotary_operator import Arrays, Fused, RotaryOperator, ramps
from opferry.operators.base import InputSpec, OutputSpec, Plan

TILING_KEYS = {"BA": 20011, "ABA": 20010, "BAB": 20020, "AB": 20030}
"""The tiling key of each kernel template, by the vendor's tiling for Ascend 950."""

WORKSPACE_BYTES = 16 * 1024 * 1024
"""What the vendor's tiling reserves in every template, for the runtime's own library."""


@dataclass(frozen=True)
class ApplyRotaryPosEmbAttributes:
    """The attributes of ApplyRotaryPosEmb."""

    rotary_mode: str = RotaryMode.HALF.value
    """How the last axis pairs up: "half", "interleave" or "quarter"."""
    layout: int = int(Layout.BSND)
    """The order of the axes: 1 BSND, 2 SBND, 3 BNSD or 4 TND."""


class ApplyRotaryPosEmb(RotaryOperator):
    """The operator; `APPLY_ROTARY_POS_EMB` is its one instance."""

    name = "ApplyRotaryPosEmb"
    python_name = "apply_rotary_pos_emb"
    aclnn_suffix = "V2"
    inputs = (
        InputSpec("query"),
        InputSpec("key", like="query"),
        InputSpec("cos"),
        InputSpec("sin", like="cos"),
    )
    outputs = (
        OutputSpec("query_out", "q_embed", like="query", overwrites="query"),
        OutputSpec("key_out", "k_embed", like="key", overwrites="key"),
    )
    attribute_names: ClassVar = {
        "rotary_mode": "rotary_mode",
        "rotaryMode": "rotary_mode",
        "layout": "layout",
    }
    attributes_class = ApplyRotaryPosEmbAttributes
    # the vendor's PyTorch function takes this word, and treats it as BSND
    layout_aliases: ClassVar = {"BSH": Layout.BSND}
    modes = tuple(RotaryMode)

    def check(
        self, specs: Mapping[str, TensorSpec], attributes: ApplyRotaryPosEmbAttributes
    ) -> Plan:
        """Check a call in the order of the device's own host code and return its plan."""
        self.check_present(specs)
        inputs: dict[str, TensorSpec] = self.ordered(specs)
        layout = check_forward(inputs, attributes.rotary_mode, attributes.layout)
        for name, spec in inputs.items():
            check_storage(name, spec)
        template = _template(layout, inputs["query"].shape, inputs["cos"].shape)
        return Plan(
            operator=self,
            attributes=attributes,
            inputs=inputs,
            outputs=self.infer_specs(inputs),
            broadcast_axes=(),
            template=template,
            tiling_key=TILING_KEYS[template],
            workspace_bytes=WORKSPACE_BYTES,
        )

    def compute(
        self,
        inputs: Arrays,
        outputs: Arrays,
        attributes: ApplyRotaryPosEmbAttributes,
        work: Any,
    ) -> None:
        """Fill the outputs by `rotate`."""
        rotate(inputs, outputs, attributes.rotary_mode, work)

    def fused(self, thread_count: int) -> Fused:
        """Return the loops of `_rotary_forward_compiled`."""
        from opferry.operators._rotary_forward_compiled import FusedRotary

        loops = FusedRotary(thread_count)
        return lambda inputs, outputs, attributes: loops(inputs, outputs, attributes.rotary_mode)

    def known_answer_case(self) -> tuple[dict[str, NDArray[Any]], ApplyRotaryPosEmbAttributes]:
        """Two batches that share cos and sin of independent halves; more query than key heads.

        All of D is rotated: that less may be is a rule of Ascend 950's newer releases, and a device
        whose release has it not is to serve the rest.
        """
        table = (1, 4, 1, 16)
        shapes = {"query": (2, 4, 3, 16), "key": (2, 4, 2, 16), "cos": table, "sin": table}
        return ramps(shapes), ApplyRotaryPosEmbAttributes()


APPLY_ROTARY_POS_EMB = ApplyRotaryPosEmb()
"""The operator."""


def _template(layout: Layout, query: tuple[int, ...], cos: tuple[int, ...]) -> str:
    """Return the kernel template by the vendor's rule, which asks for AB first."""
    if layout is Layout.BNSD:
        return "BA" if cos[0] == 1 else "ABA"
    return "BAB" if layout is Layout.BSND and cos[0] != query[0] else "AB"
