"""Rows of an operator whose aclnn function overwrites its inputs: in which forms they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import CaseFile, CaseFileError, CaseStatus, run_cases

MakeFile = Callable[..., CaseFile]

SHAPES = "(2,3,4,8),(2,3,2,8),(1,3,1,4),(1,3,1,4)"
OUTPUTS = "(2,3,4,8),(2,3,2,8)"
ACLNN = {
    "api_name": "aclnnApplyRotaryPosEmbV2",
    "tensor_view_shapes": f"({SHAPES},)",
    "attributes": "{'rotaryMode': 'quarter', 'layout': 1}",
    "output_tensor_indexes": "",
}
E2E = {
    **ACLNN,
    "api_name": "torch.ops.cann_ops_transformer.apply_rotary_pos_emb",
    "tensor_view_shapes": f"({SHAPES},{OUTPUTS},)",
    "attributes": "{'rotary_mode': 'quarter', 'layout': 'BSND'}",
}
QUERY, KEY = (TensorSpec(DType.FLOAT32, (2, 3, heads, 8)) for heads in (4, 2))


@pytest.mark.parametrize(
    "row",
    [
        ACLNN,
        {**ACLNN, "output_tensor_indexes": "(0,1,)", "output_inplace_indexes": "(0,1,)"},
        {**ACLNN, "output_inplace_indexes": "0"},
        {**ACLNN, "api_name": "aclnnApplyRotaryPosEmb"},
        {**ACLNN, "tensor_view_shapes": f"({SHAPES},{OUTPUTS},)", "output_tensor_indexes": "(4,5)"},
        E2E,
        {**E2E, "output_tensor_indexes": "(4,5,)"},
        {**E2E, "tensor_view_shapes": f"({SHAPES},)", "output_inplace_indexes": "()"},
    ],
)
def test_both_forms_name_the_same_outputs(make_file: MakeFile, row: dict[str, str]) -> None:
    """Four tensors or six, with positions or without: two inputs, two tables, two outputs."""
    (case,) = make_file(row).cases
    assert case.operator.name == "ApplyRotaryPosEmb"
    assert list(case.inputs) == ["query", "key", "cos", "sin"]
    assert case.outputs == {"query_out": QUERY, "key_out": KEY}
    assert (case.attributes.rotary_mode, case.attributes.layout) == ("quarter", 1)


def test_an_output_of_two_may_be_chosen(make_file: MakeFile, reference_call: Any) -> None:
    """By the position of the input over which it is written; each has its own tolerance."""
    row = {**ACLNN, "output_tensor_indexes": "(1,)", "precision_tolerances": "((0.5, 0.25),)"}
    (case,) = make_file(row).cases
    assert case.outputs == {"key_out": KEY}
    assert case.tolerances["key_out"].rtol == 0.5
    (result,) = run_cases([case], reference_call)
    assert result.status is CaseStatus.PASS
    assert [output.name for output in result.outputs] == ["key_out"]


def test_a_view_is_the_inputs(make_file: MakeFile, reference_call: Any) -> None:
    """What comes back of an overwritten view is compact, and is judged as such."""
    views = {
        "tensor_view_strides": "((120,40,10,1),None,None,None)",
        "tensor_view_offsets": "(2,0,0,0)",
        "tensor_storage_shapes": "((2,3,4,10),None,None,None)",
    }
    (case,) = make_file({**ACLNN, **views}).cases
    assert case.inputs["query"].storage_offset == 2
    assert case.inputs["query"].full_strides == (120, 40, 10, 1)
    assert case.outputs == {"query_out": QUERY, "key_out": KEY}
    (result,) = run_cases([case], reference_call)
    assert result.status is CaseStatus.PASS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output_tensor_indexes": "(2,)"}, "has 2; the outputs are 0 query_out, 1 key_out"),
        ({"output_tensor_indexes": "(1,1)"}, "has 1 twice"),
        ({"output_inplace_indexes": "(2,)"}, "has 2; the tensors that are overwritten are 0, 1"),
        ({"output_inplace_indexes": "'all'"}, "the tensors that are overwritten are 0, 1"),
        (
            {"tensor_view_shapes": f"({SHAPES},{OUTPUTS},)", "output_inplace_indexes": "(0,)"},
            "has 0; no output of this row is written over an input",
        ),
        ({"tensor_view_shapes": f"({SHAPES},{OUTPUTS},(1,))"}, "has 7 tensors; ApplyRotaryPosEmb"),
        ({"inplace_input_indexes": "(0,)"}, "the function returns new tensors"),
        ({"attributes": "{'rotaryModeOptional': 'half'}"}, "'rotaryModeOptional' is unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(
    make_file: MakeFile, change: dict[str, str], words: str
) -> None:
    """By the column's name, with what is allowed."""
    with pytest.raises(CaseFileError, match=words) as caught:
        make_file({**ACLNN, **change})
    assert caught.value.column in change
