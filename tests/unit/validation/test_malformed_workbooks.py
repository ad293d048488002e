"""Workbooks that are refused, each in one line with its place, in bounded time and memory."""

from __future__ import annotations

import csv
import re
import time
import tracemalloc
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from openpyxl.worksheet.formula import ArrayFormula

from opferry.validation import CaseFileError, _xlsx_limits, read_cases
from tests.support.workbooks import excel_parts, pack

HEADER = ("testcase_name", "api_name", "tensor_view_shapes", "tensor_dtypes", "remark")
ROW = ("a", "aclnnApplyRotaryPosEmbGrad", "((1,1,1,2),)", "('fp32',)", "")


@pytest.fixture
def workbook(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a header and rows to a workbook; cells are put in by coordinate."""

    def write(*rows: Any, **cells: Any) -> Path:
        book = Workbook()
        sheet: Any = book.active
        for row in (HEADER, ROW, *rows):
            sheet.append(row)
        for place, value in cells.items():
            sheet[place] = value
        book.save(tmp_path / "cases.xlsx")
        return tmp_path / "cases.xlsx"

    return write


@pytest.fixture
def repack(tmp_path: Path) -> Callable[..., Path]:
    """A function that changes a good workbook's parts by a function each, or leaves one out."""

    def change(parts: Mapping[str, Any]) -> Path:
        with (tmp_path / "cases.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows((HEADER, ROW))
        texts: dict[str, Any] = dict(excel_parts(tmp_path / "cases.csv"))
        for name, changed in parts.items():
            text = texts.pop(name)
            if changed is not None:
                texts[name] = changed(text)
        return pack(tmp_path / "cases.xlsx", texts)

    return change


def refusal(path: Path) -> CaseFileError:
    with pytest.raises(CaseFileError) as caught:
        read_cases(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return caught.value


@pytest.mark.parametrize(
    ("cells", "row", "column", "said"),
    [
        ({"E2": "=1+1"}, 2, "remark", "has a formula, which is code in a cell; put its value"),
        ({"E2": '=HYPERLINK("x","y")'}, 2, "remark", "has a formula"),
        ({"E2": ArrayFormula("E2", "=SUM(A1:A2)")}, 2, "remark", "has a formula"),
        ({"G2": "=1"}, 2, "G2", "has a formula"),
        ({"A1": "=1"}, 1, "A1", "has a formula"),
        ({"E2": date(2026, 1, 2)}, 2, "remark", "is a date or a time; format the cell as text"),
        ({"E2": timedelta(hours=1)}, 2, "remark", "is a date or a time"),
        ({"E2": "#DIV/0!"}, 2, "remark", "has the error value '#DIV/0!'"),
        ({"F2": "x"}, 2, None, "has 6 cells; the header has 5"),
        ({"G1": "x"}, 1, None, "column 6 has no name"),
        ({"B1": None}, 1, None, "column 2 has no name"),
        ({"B1": "testcase_name"}, 1, "testcase_name", "is there twice"),
        ({"D1": "other"}, 1, None, "the header lacks tensor_dtypes"),
        ({"C2": "__import__('os')"}, 2, "tensor_view_shapes", "at character 1"),
        ({"C2": 3}, 2, "tensor_view_shapes", "is 3; give a tuple"),
        ({"D2": True}, 2, "tensor_dtypes", "is True; give a tuple"),
        ({"A2": None}, 2, "testcase_name", "is empty; every row needs it"),
        ({"A3": "b", "B3": "x"}, 3, "tensor_view_shapes", "is empty; every row needs it"),
        ({"ZZZ2": "x"}, 2, None, "reaches beyond the 1024 columns that are read"),
        ({"A1048576": "x"}, 1048576, "api_name", "is empty; every row needs it"),
    ],
)
def test_a_cell_that_is_refused(
    workbook: Callable[..., Path], cells: dict[str, Any], row: int, column: str | None, said: str
) -> None:
    """Code in a cell above all."""
    error = refusal(workbook(**cells))
    assert (error.row, error.column) == (row, column)
    assert said in error.message


def test_a_name_twice(workbook: Callable[..., Path]) -> None:
    """Names are unique, as in a CSV."""
    error = refusal(workbook(ROW))
    assert (error.row, error.column) == (3, "testcase_name")


def test_a_merged_header(tmp_path: Path) -> None:
    """Of merged cells only the first has a text."""
    book = Workbook()
    sheet: Any = book.active
    sheet.append(HEADER)
    sheet.append(ROW)
    sheet.merge_cells("A1:B1")
    book.save(tmp_path / "cases.xlsx")
    assert refusal(tmp_path / "cases.xlsx").message.startswith("column 2 has no name")


def test_sheets_without_rows(tmp_path: Path) -> None:
    """An empty sheet is an empty file; a sheet of charts is none."""
    book = Workbook()
    book.save(tmp_path / "1.xlsx")
    assert refusal(tmp_path / "1.xlsx").message.startswith("is empty")
    book = Workbook(write_only=True)
    book.create_chartsheet("chart")
    book.save(tmp_path / "2.xlsx")
    assert "chart" not in refusal(tmp_path / "2.xlsx").message


SHEET, TEXTS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"


def instead(old: str, new: str) -> Callable[[str], str]:
    def changed(text: str) -> str:
        found = re.sub(old, new, text, count=1)
        assert found != text
        return found

    return changed


DOCTYPE = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
PARTS: list[tuple[str, dict[str, Any], str]] = [
    ("without workbook", {"xl/workbook.xml": None}, "is no Excel workbook that can be read"),
    ("without types", {"[Content_Types].xml": None}, "is no Excel workbook that can be read"),
    ("without sheet", {SHEET: None}, "has no sheet with cells"),
    ("without texts", {TEXTS: None}, "is no Excel workbook that can be read"),
    ("sheet cut off", {SHEET: lambda text: text[:-30]}, "is no Excel workbook that can be read"),
    ("sheet no XML", {SHEET: lambda _: "rows"}, "is no Excel workbook that can be read"),
    ("entities", {SHEET: instead("<worksheet", DOCTYPE + "<worksheet")}, "has a document type"),
    ("entities in texts", {TEXTS: instead("<sst", DOCTYPE + "<sst")}, "a document type"),
    ("a text that is not there", {SHEET: instead("<v>0</v>", "<v>9999</v>")}, "can be read"),
    ("a text before the first", {SHEET: instead("<v>0</v>", "<v>zero</v>")}, "can be read"),
    ("a cell beyond all", {SHEET: instead('r="A1"', 'r="AAAAA1"')}, "can be read"),
    ("rows out of order", {SHEET: instead('<row r="2"', '<row r="1"')}, "row 1: comes after row"),
    (
        "a row far away",
        {SHEET: instead('<row r="2"', '<row r="999999999"')},
        "row 999999999: is beyond the 1048576 rows",
    ),
    (
        "a million cells in a row",
        {SHEET: instead('<row r="2"[^>]*>', '<row r="2">' + "<c/>" * 1_000_000)},
        "row 2: has more than 1024 cells",
    ),
    (
        "a million merged cells",
        {SHEET: instead("</sheetData>", '</sheetData><x a="1">' + "<y/>" * 1_000_000 + "</x>")},
        "has more cells, styles or links than are read",
    ),
    (
        "a zip bomb",
        {TEXTS: lambda text: text + " " * (129 * 2**20)},
        "; at most 134217728 are read",
    ),
]


@pytest.mark.parametrize(("parts", "said"), [pytest.param(p, s, id=i) for i, p, s in PARTS])
def test_a_damaged_workbook(repack: Callable[..., Path], parts: dict[str, Any], said: str) -> None:
    """One line, soon, and without the memory that the file would like to take."""
    path = repack(parts)
    tracemalloc.start()
    started = time.monotonic()
    try:
        error = refusal(path)
        seconds, memory = time.monotonic() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said in str(error)
    assert seconds < 60
    assert memory < 64 * 2**20


def test_more_cells_than_are_read(
    repack: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted before anything is made of them."""
    monkeypatch.setattr(_xlsx_limits, "MAX_ELEMENTS", 50_000)
    rows = ("<row>" + "<c/>" * 1000 + "</row>") * 51
    path = repack({SHEET: instead("</sheetData>", rows + "</sheetData>")})
    assert refusal(path).message.startswith("has more cells, styles or links than are read")


def test_a_sheet_that_claims_to_be_huge(repack: Callable[..., Path]) -> None:
    """What a sheet says of its own size decides over nothing."""
    path = repack({SHEET: instead("A1:E2", "A1:XFD1048576")})
    started = time.monotonic()
    assert [case.name for case in read_cases(path).cases] == ["a"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("size", [0, 3, 4, 100, 3000])
def test_a_workbook_that_is_cut_off(workbook: Callable[..., Path], size: int) -> None:
    """A download that ended early is no workbook."""
    path = workbook()
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(path).message.startswith("is no Excel workbook")


def test_damaged_bytes(workbook: Callable[..., Path]) -> None:
    """Bytes that changed on the way are found by the archive's own sums, or refused otherwise."""
    path = workbook()
    good = path.read_bytes()
    for place in range(40, len(good), 97):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        try:
            cases = read_cases(path).cases
        except CaseFileError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most are refused, some do not matter
        else:
            assert [case.name for case in cases] == ["a"]
