"""The plan of ApplyRotaryPosEmbGrad: template, tiling key, workspace, axes, sizes, shapes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named
from opferry.operators.base import Plan

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")
MIB = 2**20
F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
Shape = tuple[int, ...]


def _specs(
    dtype: DType, query: Shape, key: Shape, cos: Shape, *, optional: bool
) -> dict[str, TensorSpec]:
    shapes = {"grad_query_embed": query, "grad_key_embed": key, "cos": cos, "sin": cos}
    if optional:
        shapes |= {"query": query, "key": key}
    return {name: TensorSpec(dtype, shape) for name, shape in shapes.items()}


def _plan(specs: dict[str, TensorSpec], layout: int) -> Plan:
    return OPERATOR.check(specs, OPERATOR.parse_attributes({"layout": layout}))


class Row(NamedTuple):
    """A call by its shapes, and its plan worked out by hand."""

    layout: int
    dtype: DType
    query: Shape
    key: Shape
    cos: Shape
    optional: bool
    template: str
    workspace_bytes: int
    axes: tuple[int, ...]


ROWS = {
    "smallest published": Row(
        1, F32, (1, 1, 1, 128), (1, 1, 1, 128), (1, 1, 1, 128), True, "A", 1024 + 16 * MIB, ()
    ),
    "smallest, gradients only": Row(
        1, F32, (1, 1, 1, 128), (1, 1, 1, 128), (1, 1, 1, 128), False, "A", 1024, ()
    ),
    "BSND, B = 1 counts as broadcast": Row(
        1, BF16, (1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4), True, "BAB", 3 * 2 * 4 * 4 * 2, (2,)
    ),
    "BSND, B = 1, gradients only": Row(
        1, BF16, (1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4), False, "BAB", 3 * 2 * 4 * 2 * 2, (2,)
    ),
    "BSND, cos for each batch": Row(
        1, F16, (2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 1, 8), True, "AB", 6 * 5 * 8 * 4 * 2, (2,)
    ),
    "BSND, cos for each batch, gradients only": Row(
        1, F16, (2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 1, 8), False, "AB", 6 * 5 * 8 * 2 * 2, (2,)
    ),
    "BSND, one cos": Row(
        1, F16, (2, 3, 4, 8), (2, 3, 5, 8), (1, 3, 1, 8), True, "BAB", 6 * 5 * 8 * 4 * 2, (0, 2)
    ),
    "BSND, one head": Row(
        1, F16, (2, 3, 1, 8), (2, 3, 1, 8), (2, 3, 1, 8), True, "A", 6 * 8 * 2 * 2 + 16 * MIB, ()
    ),
    "BSND, one head, one cos": Row(
        1, F16, (2, 3, 1, 8), (2, 3, 1, 8), (1, 3, 1, 8), True, "BAB", 6 * 8 * 4 * 2, (0,)
    ),
    "BSND, one query head only": Row(
        1, F16, (2, 3, 1, 8), (2, 3, 2, 8), (2, 3, 1, 8), True, "AB", 6 * 2 * 8 * 4 * 2, (2,)
    ),
    "SBND, one cos": Row(
        2, F32, (3, 2, 4, 8), (3, 2, 2, 8), (3, 1, 1, 8), True, "AB", 6 * 4 * 8 * 4 * 2, (1, 2)
    ),
    "SBND, one head, one cos": Row(
        2, F16, (3, 2, 1, 8), (3, 2, 1, 8), (3, 1, 1, 8), True, "AB", 6 * 8 * 4 * 2, (1,)
    ),
    "SBND, one head": Row(
        2, F16, (3, 2, 1, 8), (3, 2, 1, 8), (3, 2, 1, 8), True, "A", 6 * 8 * 2 * 2 + 16 * MIB, ()
    ),
    "SBND, B = 1": Row(
        2, BF16, (3, 1, 4, 8), (3, 1, 4, 8), (3, 1, 1, 8), True, "AB", 3 * 4 * 8 * 4 * 2, (2,)
    ),
    "TND": Row(4, BF16, (6, 4, 8), (6, 2, 8), (6, 1, 8), True, "BAB", 6 * 4 * 8 * 4 * 2, (1,)),
    "TND, gradients only": Row(
        4, BF16, (6, 4, 8), (6, 2, 8), (6, 1, 8), False, "BAB", 6 * 4 * 8 * 2 * 2, (1,)
    ),
    "TND, one head": Row(
        4, F32, (6, 1, 8), (6, 1, 8), (6, 1, 8), True, "A", 6 * 8 * 4 * 2 + 16 * MIB, ()
    ),
    "TND, one query head only": Row(
        4, F32, (6, 1, 8), (6, 3, 8), (6, 1, 8), True, "BAB", 6 * 3 * 8 * 4 * 2, (1,)
    ),
    "2 GiB of workspace": Row(
        1,
        BF16,
        (4, 8192, 64, 128),
        (4, 8192, 64, 128),
        (4, 8192, 1, 128),
        True,
        "AB",
        2147483648,
        (2,),
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_plans_worked_out_by_hand(row: Row) -> None:
    """Template, tiling key, workspace and broadcast axes follow the vendor's rules."""
    plan = _plan(_specs(row.dtype, row.query, row.key, row.cos, optional=row.optional), row.layout)
    assert plan.template == row.template
    assert plan.tiling_key == {"BAB": 203, "AB": 204, "A": 205}[row.template]
    assert plan.workspace_bytes == row.workspace_bytes
    assert plan.broadcast_axes == row.axes


def test_sizes_are_counted_beyond_31_bits() -> None:
    """Inputs, outputs and workspace of a large call are counted in full."""
    row = ROWS["2 GiB of workspace"]
    plan = _plan(_specs(row.dtype, row.query, row.key, row.cos, optional=True), row.layout)
    gradients, tables = 512 * MIB, 4 * 8192 * 128 * 2
    assert plan.input_bytes == 4 * gradients + 2 * tables
    assert plan.output_bytes == 2 * gradients + 2 * tables
    assert plan.total_bytes == plan.input_bytes + plan.output_bytes + 2**31


def test_inputs_count_by_their_storage() -> None:
    """What a view's storage takes counts, not what the view shows; outputs are contiguous."""
    specs = _specs(F32, (2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 1, 2), optional=False)
    specs["cos"] = TensorSpec(F32, (2, 2, 1, 2), (0, 0, 0, 1), 5, (10,))
    plan = _plan(specs, 1)
    assert plan.input_bytes == (16 + 16 + 10 + 8) * 4
    assert plan.output_bytes == (16 + 16) * 4
    assert all(spec.strides is None for spec in plan.outputs.values())


@pytest.mark.parametrize("optional", [False, True])
def test_inputs_and_outputs_are_in_the_operators_order(optional: bool) -> None:
    """Whatever order is given, the plan has aclnn's, without outputs that are not computed."""
    specs = _specs(F16, (2, 3, 4, 8), (2, 3, 5, 8), (1, 3, 1, 8), optional=optional)
    plan = _plan(dict(reversed(specs.items())), 1)
    assert list(plan.inputs) == list(specs)
    expected = {
        "grad_query": TensorSpec(F16, (2, 3, 4, 8)),
        "grad_key": TensorSpec(F16, (2, 3, 5, 8)),
    }
    if optional:
        expected["grad_cos"] = expected["grad_sin"] = TensorSpec(F16, (1, 3, 1, 8))
    assert plan.outputs == expected
    assert list(plan.outputs) == list(expected)


@pytest.mark.parametrize("width", [2, 4, 64, 128, 192, 512, 1022, 1024])
@pytest.mark.parametrize("dtype", list(DType))
def test_widths_up_to_the_limit_pass(width: int, dtype: DType) -> None:
    """Every even D from 2 to 1024 is accepted."""
    plan = _plan(_specs(dtype, (2, 3, width), (2, 1, width), (2, 1, width), optional=True), 4)
    assert plan.workspace_bytes == 2 * 3 * width * 4 * 2


def test_a_view_outside_its_storage_is_refused_last() -> None:
    """Strides are checked when all shapes are right; the tensor is named."""
    specs = _specs(F16, (2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 1, 8), optional=True)
    specs["sin"] = TensorSpec(F16, (2, 3, 1, 8), (24, 8, 8, 1), 1, (48,))
    with pytest.raises(Problem, match="sin addresses element 48 of a storage of 48") as caught:
        _plan(specs, 1)
    assert (caught.value.reason, caught.value.argument) == (Reason.TENSOR_MALFORMED, "sin")


def test_unknown_extents_and_ranks_pass_through_shape_inference() -> None:
    """-1, an unknown extent, and [-2], an unknown rank, come out as they went in."""
    shapes = {
        "grad_query_embed": (-1, 3, -1, 8),
        "grad_key_embed": (-2,),
        "cos": (-1, 3, 1, 8),
        "sin": (-2,),
    }
    assert OPERATOR.infer_shapes(shapes) == {
        "grad_query": (-1, 3, -1, 8),
        "grad_key": (-2,),
    }
    both = {**shapes, "query": (-2,), "key": (-1, -1, -1, -1)}
    assert OPERATOR.infer_shapes(both) == {
        "grad_query": (-1, 3, -1, 8),
        "grad_key": (-2,),
        "grad_cos": (-1, 3, 1, 8),
        "grad_sin": (-2,),
    }


def test_specs_are_inferred_without_the_contract() -> None:
    """Outputs take shape and dtype of their inputs, even where the contract would refuse."""
    specs = {
        "grad_query_embed": TensorSpec(BF16, (2, 3), (1, 2)),
        "grad_key_embed": TensorSpec(F32, (7,)),
        "cos": TensorSpec(F16, (5,)),
        "query": TensorSpec(F16, (1,)),
        "key": TensorSpec(F16, (1,)),
    }
    assert OPERATOR.infer_specs(specs) == {
        "grad_query": TensorSpec(BF16, (2, 3)),
        "grad_key": TensorSpec(F32, (7,)),
        "grad_cos": TensorSpec(F16, (5,)),
    }
