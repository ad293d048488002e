"""Files that are refused, each in one line with its place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from opferry.validation import CaseFileError, read_cases

CELLS: list[tuple[str, str, str]] = [
    ("testcase_name", "", "is empty; every row needs it"),
    ("api_name", "  ", "is empty; every row needs it"),
    ("api_name", "aclnnAdd", "operator 'aclnnAdd' is not known here"),
    ("tensor_view_shapes", "", "is empty; every row needs it"),
    ("tensor_view_shapes", "()", "give a tuple with one shape or None for each tensor"),
    ("tensor_view_shapes", "4", "is 4; give a tuple"),
    ("tensor_view_shapes", "(2,3,4)", "a shape is a tuple of integers"),
    ("tensor_view_shapes", "((2,3.0),)", "a shape is a tuple of integers"),
    ("tensor_view_shapes", "((2,True),)", "a shape is a tuple of integers"),
    ("tensor_view_shapes", "(((2,3),(2,3)),(2,3))", "has the tensor list"),
    (
        "tensor_view_shapes",
        "(" + "(2,2)," * 11 + ")",
        "has 11 tensors; ApplyRotaryPosEmbGrad has 6",
    ),
    ("tensor_view_shapes", "((2,3,4,8)", "is not a literal"),
    ("tensor_view_shapes", "((2,3,4,-),)", "at character 9"),
    ("tensor_view_shapes", "open('x')", "at character 1"),
    ("tensor_view_shapes", "{'a': 1}", "is {'a': 1}; give a tuple"),
    ("tensor_dtypes", "", "is empty; every row needs it"),
    ("tensor_dtypes", "('float64',)", "grad_query_embed has dtype float64; allowed are"),
    ("tensor_dtypes", "float32", "at character 1"),
    ("tensor_dtypes", "'float32'", "give a tuple with one entry for each of the tensors"),
    ("tensor_dtypes", "(None,)", "has None for grad_query_embed"),
    ("tensor_dtypes", "('fp32','fp32')", "has None for cos, whose shape is (2, 3, 1, 8)"),
    ("tensor_dtypes", "('fp32',)+('fp32',)", "at character 10"),
    ("tensor_dtypes", "(" + "'fp32'," * 11 + ")", "has 11 entries for 10 tensors"),
    ("tensor_formats", "('NCHW',)", "has 'NCHW'; only ND is served"),
    ("tensor_storage_shapes", "((2.5,),)", "a storage shape is a tuple of integers"),
    ("tensor_view_strides", "(8,)", "a tuple of strides is a tuple of integers"),
    (
        "tensor_view_strides",
        "(None,None,None,None,None,None,(48,16,8,2),)",
        "grad_query non-contig",
    ),
    ("tensor_view_offsets", "(1.5,)", "an offset is an integer or None"),
    ("tensor_view_offsets", "((1,),)", "an offset is an integer or None"),
    ("attributes", "{'mode': 'half'}", "attribute 'mode' is unknown"),
    ("attributes", "('layout', 1)", "give a dict of names and values"),
    ("attributes", "{'layout': 'NBSD'}", "layout 'NBSD' is unknown"),
    ("attributes", "{'layout': 1.5}", "layout is a float"),
    ("attributes", "{'rotary_mode': 1}", "rotary_mode is a int"),
    ("attributes", "{'layout': 1, 'layout': 2}", "has the key 'layout' twice"),
    ("attributes", "{'layout': 1", "is not a literal"),
    ("output_tensor_indexes", "(0,6)", "has 0; the outputs are 6 grad_query, 7 grad_key"),
    ("output_tensor_indexes", "(10,)", "has 10; the outputs are"),
    ("output_tensor_indexes", "(6,6)", "has 6 twice"),
    ("output_tensor_indexes", "('6',)", "has '6'; the outputs are"),
    ("precision_tolerances", "(0.001,0.001)", "has 0.001 for grad_query; give (rtol, share"),
    ("precision_tolerances", "((0.001,1.5),)", "the share at most 1"),
    ("precision_tolerances", "((-1,0),)", "both 0 or more"),
    ("precision_tolerances", "((nan,0),)", "both 0 or more"),
    ("precision_tolerances", "((0,0),)" * 1 + "+((0,0),)", "at character 9"),
    ("precision_tolerances", "(" + "(0,0)," * 5 + ")", "has 5 entries for 4 outputs"),
    ("absolute_precision", "-1e-5", "give a number, 0 or more"),
    ("absolute_precision", "inf", "give a number, 0 or more"),
    ("absolute_precision", "'x'", "give a number, 0 or more"),
    ("input_data_ranges", "((2,1),)", "the lower bound comes first"),
    ("input_data_ranges", "(-1,1)", "a range is (low, high) or None"),
    ("input_data_ranges", "(('a','b'),)", "give numbers"),
    ("input_data_ranges", "(" + "(0,1)," * 11 + ")", "has 11 entries for 10 tensors"),
    ("input_data_ranges", "((0,Infinity),)", "at character 5"),
    ("is_enabled", "maybe", "is 'maybe'; give True or False"),
    ("normal_distribution", "2", "is '2'; give True or False"),
    ("manual_tensor_binaries", "('x.bin',)", "x.bin, and there is no such file"),
    ("manual_tensor_binaries", "open('x.bin')", "give a file that ends in .bin or .npy"),
    ("manual_tensor_binaries", "(open('x.bin'),)", "has \"open('x.bin'),)\" at character 2"),
    ("manual_tensor_binaries", "(1,)", "has 1; give a path in quotes, or None"),
    ("manual_tensor_binaries", "(None,) * 6", "at character 9"),
    ("manual_tensor_binaries", "(('a.bin','b.bin'),)", "give a path in quotes, or None"),
    ("manual_tensor_binaries", "('x.pt',)", "is a pickle, which can run code, and is never read"),
    ("manual_tensor_binaries", "(None,None,None,None,None,None,'x.bin')", "a file for an output"),
    ("manual_tensor_binaries", "(" + "None," * 10 + "'x.bin')", "names 11 files"),
    ("manual_golden_binaries", "x.bin", "x.bin, and there is no such file"),
    ("manual_golden_binaries", "('.',)", "give a file that ends in .bin or .npy"),
    ("manual_golden_binaries", "(None,None,None,None,'x.bin')", "names 5 files for 4 listed"),
    ("golden_api", "disable", "another golden is not served"),
    ("soc_series", "__import__('os')", "a SoC is a word such as Ascend910B"),
    ("soc_series", "(1,)", "has 1; a SoC is a word"),
    ("soc_series", "('Ascend910B'", "is not a literal"),
    ("soc_series", "Ascend910B,", "has ''; a SoC is a word"),
    ("priority", "1.5", "is 1.5; a priority is an integer"),
    ("priority", "True", "is True; a priority is an integer"),
    ("priority", "high", "at character 1"),
    ("output_inplace_indexes", "(0,)", "no output of this row is written over an input"),
    ("scalar_dtypes", "('int64',)", "has no scalar tensors"),
    ("scalar_data_ranges", "((0,1),)", "has no scalar tensors"),
    ("input_data_ranges", "(" + "(0,1)," * 1_000_000 + ")", "field larger than field limit"),
    ("input_data_ranges", "(" + "(0,1)," * 20_000 + ")", "a literal has at most 16384"),
    ("tensor_view_shapes", "(" * 10_000 + ")" * 10_000, "a literal has at most 16384"),
    ("tensor_view_shapes", "(" * 8_000 + ")" * 8_000, "is not a literal"),
    ("tensor_view_shapes", "[" * 50 + "]" * 50, "is nested deeper than 8 levels"),
    ("attributes", "__import__('os').system('true')", "at character 1"),
    ("attributes", "{'layout': (lambda: 1)()}", "at character 13"),
    ("testcase_name", "a\0b", "NUL"),
    ("remark", "x" * 200_000, "field larger than field limit"),
]

WITHOUT_COLUMN = ("field limit", "NUL")
"""Faults that the text of the file has, before there are columns."""


@pytest.mark.parametrize(
    ("column", "cell", "said"), CELLS, ids=[f"{column}-{said[:30]}" for column, _, said in CELLS]
)
def test_a_cell_that_is_refused(
    write_file: Callable[..., Path], column: str, cell: str, said: str
) -> None:
    """The message is one line that names the file, the row, the column, and what is wrong."""
    path = write_file({}, {"testcase_name": "bad", column: cell})
    with pytest.raises(CaseFileError) as caught:
        read_cases(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, row 3")
    assert said in text
    assert "\n" not in text
    assert len(text) < 600
    if not any(said.endswith(word) for word in WITHOUT_COLUMN):
        assert caught.value.column == column
        assert f"row 3, column {column}: " in text


HEADER = "testcase_name,api_name,tensor_view_shapes,tensor_dtypes"
LINE = 'a,aclnnApplyRotaryPosEmbGrad,"((1,1,1,2),)","(\'fp32\',)"'
FILES: list[tuple[str, bytes, str]] = [
    ("empty", b"", "is empty; a case file starts with a header"),
    ("blank", b"\n\n", "is empty; a case file starts with a header"),
    ("header only", f"{HEADER}\n".encode(), "has a header but no rows"),
    ("no header", f"{LINE}\n{LINE}\n".encode(), "row 1: the header lacks testcase_name, api_name"),
    (
        "a kernel file",
        b"testcase_name,op_name,input_shapes\na,b,c\n",
        "row 1: the header lacks api_name, tensor_view_shapes, tensor_dtypes",
    ),
    ("column twice", f"{HEADER},api_name\n".encode(), "row 1, column api_name: is there twice"),
    ("column without name", f"{HEADER},,x\n".encode(), "row 1: column 5 has no name"),
    (
        "both storage columns",
        f"{HEADER},tensor_stroage_shapes,tensor_storage_shapes\n".encode(),
        "row 1, column tensor_stroage_shapes: is there, and so is tensor_storage_shapes",
    ),
    (
        "row too short",
        f"{HEADER}\n{LINE}\nb,c,d\n".encode(),
        "row 3: has 3 cells; the header has 4",
    ),
    ("row too long", f"{HEADER}\n{LINE},,\n".encode(), "row 2: has 6 cells; the header has 4"),
    (
        "name twice",
        f"{HEADER}\n{LINE}\n\n{LINE}\n".encode(),
        "row 4, column testcase_name: 'a' is also the name of row 2",
    ),
    ("quote not closed", f'{HEADER}\n{LINE}\nb,"c\n'.encode(), "row 3: is not CSV"),
    ("text after a quote", f'{HEADER}\n"a"b,c,d,e\n'.encode(), "row 2: is not CSV"),
    ("not UTF-8", f"{HEADER}\n{LINE}\n".encode() + b"\xff\xfe,,,\n", "is not UTF-8 text"),
    ("UTF-16", f"{HEADER}\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    (
        "UTF-16 without a mark",
        f"{HEADER}\n".encode("utf-16-le"),
        "row 1: is not CSV: line contains",
    ),
    (
        "UTF-16, big end first",
        f"{HEADER}\n".encode("utf-16-be"),
        "row 1: is not CSV: line contains",
    ),
    ("NUL in the header", f"a\0,{HEADER}\n{LINE}\n".encode(), "row 1: is not CSV: line contains"),
    ("mark, then nothing", b"\xef\xbb\xbf", "is empty; a case file starts with a header"),
    ("CRLF and a short row", f"{HEADER}\r\n{LINE}\r\nb\r\n".encode(), "row 3: has 1 cells"),
    (
        "a million columns",
        (HEADER + ",x" * 1_000_000 + "\n").encode(),
        "row 1: has 1000004 columns; a case file has at most 1024",
    ),
    (
        "a million cells",
        f"{HEADER}\n{LINE}{',' * 1_000_000}\n".encode(),
        "row 2: has 1000004 cells; the header has 4",
    ),
    (
        "a column misspelt",
        f"{HEADER},atributes\n".encode(),
        "column atributes: is no column of TTK",
    ),
    ("quotes in quotes", f'{HEADER}\n{LINE}\nb,"c"d"\n'.encode(), "row 3: is not CSV"),
    ("an old workbook", bytes.fromhex("d0cf11e0a1b11ae1"), "of the old kind (.xls)"),
    ("no workbook", b"PK\x03\x04\x14\x00", "is no Excel workbook: "),
    ("semicolons", f"{HEADER}\n{LINE}\n".replace(",", ";").encode(), "the header lacks"),
    ("binary", bytes(range(256)) * 4, "row 1"),
]


@pytest.mark.parametrize(
    ("content", "said"),
    [(content, said) for _, content, said in FILES],
    ids=[name for name, _, _ in FILES],
)
def test_a_file_that_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """The message is one line that names the file and where in it the fault is."""
    path = tmp_path / "cases.csv"
    path.write_bytes(content)
    with pytest.raises(CaseFileError) as caught:
        read_cases(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cases.XLSX", "is no Excel workbook: "),
        ("cases.xlsm", "is no Excel workbook: "),
        ("cases.xls", r"of the old kind \(.xls\).*; save it as .xlsx"),
    ],
)
def test_a_workbook_is_known_by_its_name(tmp_path: Path, name: str, said: str) -> None:
    """The ending alone says what a file should be."""
    (tmp_path / name).write_text("x")
    with pytest.raises(CaseFileError, match=said):
        read_cases(tmp_path / name)


def test_a_csv_has_no_sheets(tmp_path: Path) -> None:
    """A sheet that is asked for is not passed over."""
    path = tmp_path / "cases.csv"
    path.write_text(f"{HEADER}\n{LINE}\n")
    with pytest.raises(CaseFileError, match="so has no sheet 'L0'; leave the sheet out"):
        read_cases(path, "L0")


BATCHES: list[tuple[str, str, str, str, str]] = [
    ("((100,),)", "((0,),)", "", "batch_slice_info", "is empty, and batch_axis is not"),
    ("", "((0,),)", "((((0,1,1),),),)", "batch_seed", "is empty, and batch_slice_info is not"),
    ("(1,)", "((0,),)", "4", "batch_slice_info", "is 4; give a tuple with one entry"),
    ("(1,)", "((0,),)", "(((0,1,1),),((0,1,1),))", "batch_slice_info", "for 2 tensors"),
    ("(1,)", "((0,),)", "(None,None)", "batch_slice_info", "for 0 tensors"),
    ("(1,)", "((0,),)", "(" + "None," * 6 + "((0,1,1),))", "batch_slice_info", "for tensor 6"),
    ("(1,)", "7", "(((0,1,1),),)", "batch_axis", "is 7; give a tuple"),
    ("(1,)", "(None,(0,))", "(((0,1,1),),)", "batch_axis", "no entry for tensor 0"),
    ("(1,)", "((4,),)", "(((0,1,1),),)", "batch_axis", "has the axis 4"),
    ("(1,)", "((-1,),)", "(((0,1,1),),)", "batch_axis", "has the axis -1"),
    ("(1,)", "((0,0),)", "(((0,1,1),(0,1,1)),)", "batch_axis", "name one or more, each once"),
    ("(1,)", "((0,1),)", "(((0,1,1),),)", "batch_slice_info", "one entry for each of the axes"),
    ("(1,)", "((0,),)", "(((0,1),),)", "batch_slice_info", "a slice is (start, stop, step)"),
    ("(1,)", "((0,),)", "(((0,1,1.5),),)", "batch_slice_info", "in integers"),
    ("(1,)", "((0,),)", "(((0,3,1),),)", "batch_slice_info", "stop <= 2, the axis's extent"),
    ("(1,)", "((0,),)", "(((1,1,1),),)", "batch_slice_info", "0 <= start < stop"),
    ("(1,)", "((0,),)", "(((0,2,0),),)", "batch_slice_info", "a step above 0"),
    (
        "(1,)",
        "((0,1),)",
        "(((0,1,1),((0,1,1),(1,2,1))),)",
        "batch_slice_info",
        "another number of slices",
    ),
    ("((1.5,),)", "((0,),)", "(((0,1,1),),)", "batch_seed", "give 1 integers"),
    ("(((1,2),),)", "((0,),)", "(((0,1,1),),)", "batch_seed", "give 1 integers"),
    ("('x',)", "((0,),)", "(((0,1,1),),)", "batch_seed", "one entry for each of the axes"),
    ("((1,2),)", "((0,1),)", "(((0,1,1),(0,1,1)),)", "batch_seed", "other seeds for one axis"),
]


@pytest.mark.parametrize(("seed", "axis", "slices", "column", "said"), BATCHES)
def test_batch_columns_that_are_refused(
    write_file: Callable[..., Path], seed: str, axis: str, slices: str, column: str, said: str
) -> None:
    """The three columns go together, and each is checked against the sliced tensor."""
    row = {"batch_seed": seed, "batch_axis": axis, "batch_slice_info": slices}
    with pytest.raises(CaseFileError) as caught:
        read_cases(write_file({}, {"testcase_name": "bad", **row}))
    assert (caught.value.row, caught.value.column) == (3, column)
    assert said in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are refused like a malformed one."""
    with pytest.raises(CaseFileError, match="cannot be read: No such file"):
        read_cases(tmp_path / "none.csv")
    with pytest.raises(CaseFileError, match="cannot be read: Is a directory"):
        read_cases(tmp_path)


def test_the_error_carries_its_fields(tmp_path: Path) -> None:
    """Path, row, column and message are there for a program, also after pickling."""
    error = CaseFileError(tmp_path / "a.csv", 3, "remark", "is\nodd")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line before
    for found in (error, again):
        assert (found.path, found.row, found.column) == (str(tmp_path / "a.csv"), 3, "remark")
        assert found.message == "is odd"
        assert str(found) == f"{tmp_path / 'a.csv'}, row 3, column remark: is odd"
