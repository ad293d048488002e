"""Reading case files: what real files hold, and what each cell means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.validation import Tolerance, ValueRange, read_cases

OUTPUTS = ["grad_query", "grad_key", "grad_cos", "grad_sin"]
INPUTS = ["grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key"]


def test_a_whole_row(make_file: Any, row: Mapping[str, str]) -> None:
    """Inputs, attributes, outputs and the original cells are all there."""
    file = make_file({**row, "remark": " a note ", "testcase_name": " first "})
    (case,) = file.cases
    assert (case.row, case.name, case.remark, case.is_enabled) == (2, "first", "a note", True)
    assert case.operator.name == "ApplyRotaryPosEmbGrad"
    assert case.attributes == ApplyRotaryPosEmbGradAttributes("half", 1)
    assert list(case.inputs) == INPUTS
    assert case.inputs["key"] == TensorSpec(DType.FLOAT32, (2, 3, 2, 8))
    assert list(case.outputs) == OUTPUTS
    assert case.outputs["grad_sin"] == TensorSpec(DType.FLOAT32, (2, 3, 1, 8))
    assert case.ranges == dict.fromkeys(INPUTS, ValueRange())
    assert case.tolerances == dict.fromkeys(OUTPUTS, Tolerance())
    assert case.absolute_precision is None
    assert case.normal_distribution is False
    assert list(case.columns) == list(file.columns) == list(row)
    assert case.columns["remark"] == " a note "
    assert file.unknown_columns == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_encodings_and_line_ends(
    tmp_path: Path, write_file: Callable[..., Path], encoding: str, line_end: str, last: bool
) -> None:
    """A byte-order mark, any line end and a missing last one make no difference."""
    text = write_file({"remark": "说明"}).read_text("utf-8").replace("\r\n", "\n").strip()
    path = tmp_path / "other.csv"
    end = line_end if last else ""
    path.write_bytes((text.replace("\n", line_end) + end).encode(encoding))
    (case,) = read_cases(path).cases
    assert case.remark == "说明"
    assert case.row == 2


def test_rows_are_counted_as_a_spreadsheet_counts_them(
    tmp_path: Path, write_file: Callable[..., Path]
) -> None:
    """Blank rows and rows of blank cells are passed over, and counted."""
    header, row = write_file({}).read_text("utf-8").splitlines()
    path = tmp_path / "gaps.csv"
    blank = "," * header.count(",")
    path.write_text("\n".join([header, "", row, blank, row.replace("small", "other")]), "utf-8")
    assert [case.row for case in read_cases(path).cases] == [3, 5]


@pytest.mark.parametrize("spelling", ["tensor_storage_shapes", "tensor_stroage_shapes"])
def test_both_spellings_of_the_storage_column(
    tmp_path: Path, write_file: Callable[..., Path], spelling: str
) -> None:
    """The storage shapes are read under the published misspelling too."""
    change = {
        "tensor_storage_shapes": "((3,4,4,8),)",
        "tensor_view_shapes": "((2,3,4,8),)",
        "output_tensor_indexes": "",
    }
    path = write_file(change)
    path.write_text(path.read_text("utf-8").replace("tensor_storage_shapes", spelling), "utf-8")
    assert read_cases(path).cases[0].inputs["grad_query_embed"].storage_shape == (3, 4, 4, 8)


def test_views_with_strides_offset_and_storage(make_file: Any) -> None:
    """The three columns describe the input's view; None and missing entries mean contiguous."""
    (case,) = make_file(
        {
            "tensor_view_strides": "((96,32,8,1),None,(),(0,8,8,1),)",
            "tensor_view_offsets": "(5,None,0,0)",
            "tensor_storage_shapes": "((300,),None,(2,3,1,8),(3,8))",
        }
    ).cases
    assert case.inputs["grad_query_embed"] == TensorSpec(
        DType.FLOAT32, (2, 3, 4, 8), (96, 32, 8, 1), 5, (300,)
    )
    assert case.inputs["grad_key_embed"] == TensorSpec(DType.FLOAT32, (2, 3, 2, 8))
    assert case.inputs["cos"].is_contiguous
    assert case.inputs["sin"].strides == (0, 8, 8, 1)
    assert case.inputs["key"].strides is None


def test_absence_is_by_shape(make_file: Any, without_optional: Mapping[str, str]) -> None:
    """A tensor whose shape is None is absent, whatever its dtype cell says."""
    for dtypes in (
        "('bf16','bf16','bf16','bf16',None,None,'bf16','bf16','bf16','bf16')",
        "('bf16','bf16','bf16','bf16','float64','bf16','bf16','bf16','bf16','bf16',)",
    ):
        (case,) = make_file({**without_optional, "tensor_dtypes": dtypes}).cases
        assert list(case.inputs) == INPUTS[:4]
        assert list(case.outputs) == OUTPUTS
        assert {spec.dtype for spec in case.inputs.values()} == {DType.BFLOAT16}


@pytest.mark.parametrize(
    "api",
    [
        "aclnnApplyRotaryPosEmbGrad",
        "torch.ops.cann_ops_transformer.apply_rotary_pos_emb_grad",
        "cann_ops_transformer.apply_rotary_pos_emb_grad",
    ],
)
def test_aclnn_and_e2e_names(make_file: Any, api: str) -> None:
    """Both kinds of file name the same operator."""
    assert make_file({"api_name": api}).cases[0].operator.name == "ApplyRotaryPosEmbGrad"


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ("", ApplyRotaryPosEmbGradAttributes("half", 1)),
        ("None", ApplyRotaryPosEmbGradAttributes("half", 1)),
        ("{}", ApplyRotaryPosEmbGradAttributes("half", 1)),
        ("{'layout': 4}", ApplyRotaryPosEmbGradAttributes("half", 4)),
        ("{'rotary_mode': 'half', 'layout': 'SBND'}", ApplyRotaryPosEmbGradAttributes("half", 2)),
        ("{'rotaryModeOptional': None}", ApplyRotaryPosEmbGradAttributes("half", 1)),
        ("{'rotary_mode': 'quarter', 'layout': 3}", ApplyRotaryPosEmbGradAttributes("quarter", 3)),
    ],
)
def test_attributes(make_file: Any, attributes: str, wanted: object) -> None:
    """C and Python names are read; values that the operator refuses wait until the row runs."""
    assert make_file({"attributes": attributes}).cases[0].attributes == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("('fp16',)", DType.FLOAT16), ("('BF16',)", DType.BFLOAT16), ("('float32',)", DType.FLOAT32)],
)
def test_dtype_words(make_file: Any, words: str, wanted: DType) -> None:
    """Short and long words are read, and one alone stands for every tensor."""
    specs = make_file({"tensor_dtypes": words}).cases[0].inputs.values()
    assert {spec.dtype for spec in specs} == {wanted}


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [
        ("", [ValueRange()] * 6),
        ("((-1,1),)", [ValueRange(-1, 1)] * 6),
        (
            "((0,0,),(-inf,inf,),None,(1,2,9),)",
            [
                ValueRange(0, 0),
                ValueRange(-math.inf, math.inf),
                ValueRange(),
                ValueRange(1, 2, (9.0,)),
                ValueRange(),
                ValueRange(),
            ],
        ),
        ("(" + "(1,2)," * 10 + "(None,None,),)", [ValueRange(1, 2)] * 6),
    ],
    ids=["empty", "one for all", "some", "one too many that asks for nothing"],
)
def test_ranges(make_file: Any, cell: str, wanted: list[ValueRange]) -> None:
    """Each input has the range at its position, TTK's default where there is none."""
    case = make_file({"input_data_ranges": cell}).cases[0]
    assert list(case.ranges.values()) == wanted


def test_tolerances(make_file: Any, without_optional: Mapping[str, str]) -> None:
    """Tolerances belong to the listed outputs in their order, absolute ones to each or to all."""
    case = make_file(
        {
            "output_tensor_indexes": "(7,6)",
            "precision_tolerances": "((0.1,0.2),None)",
            "absolute_precision": "1.00E-05",
        }
    ).cases[0]
    assert case.tolerances == {
        "grad_key": Tolerance(0.1, 0.2, 1e-5),
        "grad_query": Tolerance(None, None, 1e-5),
    }
    assert case.absolute_precision == 1e-5
    each = {"precision_tolerances": "((0.1,0.2),)", "absolute_precision": "(1e-3,None,0,1)"}
    case = make_file(each).cases[0]
    assert [tolerance.rtol for tolerance in case.tolerances.values()] == [0.1] * 4
    assert [tolerance.atol for tolerance in case.tolerances.values()] == [1e-3, None, 0, 1]
    assert case.absolute_precision is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"output_tensor_indexes": "(6,)"}, ["grad_query"]),
        ({"output_tensor_indexes": "(9,6)"}, ["grad_sin", "grad_query"]),
        ({"output_tensor_indexes": ""}, OUTPUTS),
        ({"output_tensor_indexes": "()"}, OUTPUTS),
        (
            {
                "output_tensor_indexes": "",
                "tensor_view_shapes": "((3,2,4),(3,2,4),(3,1,4),(3,1,4),None,None,(3,2,4),(3,2,4))",
            },
            OUTPUTS[:2],
        ),
        (
            {
                "output_tensor_indexes": "",
                "tensor_view_shapes": "((3,2,4),(3,2,4),(3,1,4),(3,1,4))",
            },
            OUTPUTS,
        ),
    ],
)
def test_listed_outputs(make_file: Any, change: dict[str, str], wanted: list[str]) -> None:
    """Without a list, the outputs are those with a shape, and all of them where none has one."""
    assert list(make_file(change).cases[0].outputs) == wanted


def test_unknown_columns_are_kept(make_file: Any) -> None:
    """A column that is no TTK column is neither read nor refused, and its cells are kept."""
    file = make_file({"our_ticket": "T-1", "soc_series": "('Ascend950PR',)", "priority": "1"})
    assert file.unknown_columns == ("our_ticket",)
    assert file.cases[0].columns["our_ticket"] == "T-1"


@pytest.mark.parametrize("word", ["False", "false", "FALSE", "0", " False "])
def test_a_disabled_row_may_hold_what_is_not_served(make_file: Any, word: str) -> None:
    """A row that is not to run is read, but its unserved columns are no fault."""
    case = make_file({"is_enabled": word, "batch_seed": "(100,)"}).cases[0]
    assert not case.is_enabled


@pytest.mark.parametrize(
    ("cell", "wanted"),
    [("True", True), ("1", True), ("False", False), ("", False)],
)
def test_normal_distribution(make_file: Any, cell: str, wanted: bool) -> None:
    """The row says how its inputs lie in their ranges."""
    assert make_file({"normal_distribution": cell}).cases[0].normal_distribution is wanted


@pytest.mark.parametrize("cell", ["", "None", "()", "( )", "[]", "((None, None),)"])
def test_defaults_of_columns_that_are_not_served(make_file: Any, cell: str) -> None:
    """Such a column may be there and hold its default."""
    names = ("manual_tensor_binaries", "scalar_data_ranges", "output_inplace_indexes", "golden_api")
    assert make_file(dict.fromkeys(names, cell)).cases[0].is_enabled


def test_a_row_that_breaks_the_contract_is_read(make_file: Any) -> None:
    """Shapes that the operator refuses are no fault of the file."""
    change = {
        "tensor_view_shapes": "((2,3,4,7),(0,3,2,8),(2,-1,1,8),(5,),(2,3,4,8),None)",
        "tensor_view_strides": "((1,),)",
        "output_tensor_indexes": "",
    }
    case = make_file(change).cases[0]
    assert case.inputs["sin"].shape == (5,)
    assert "key" not in case.inputs
