"""Excel workbooks: the same rows as in CSV give the same cases."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openpyxl import Workbook

from opferry.validation import CaseFile, CaseFileError, ResultWriter, read_cases
from opferry.validation.generation import generated_rows, write_rows
from tests.support.workbooks import excel_parts, pack, workbook_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "rotary_cases.csv"
FOLDER = os.environ.get("OPFERRY_TTK_DIR", "")


def assert_equal(from_csv: CaseFile, from_workbook: CaseFile) -> None:
    """The files hold the same, and make the same input columns of a result."""
    assert from_workbook == replace(from_csv, path=from_workbook.path)
    for one, other in zip(from_csv.cases, from_workbook.cases, strict=True):
        assert list(one.columns.items()) == list(other.columns.items())


def test_the_examples(tmp_path: Path) -> None:
    """Every example is the same case from a workbook, and its result file starts the same."""
    path = workbook_of(EXAMPLES, tmp_path / "cases.xlsx")
    from_csv, from_workbook = read_cases(EXAMPLES), read_cases(path)
    assert_equal(from_csv, read_cases(pack(tmp_path / "excel.xlsx", excel_parts(EXAMPLES))))
    assert_equal(from_csv, from_workbook)
    headers = []
    for name, file in (("1.csv", from_csv), ("2.csv", from_workbook)):
        ResultWriter(tmp_path / name, file).close()
        headers.append((tmp_path / name).read_bytes())
    assert headers[0] == headers[1]


@pytest.mark.parametrize("kind", ["aclnn", "e2e"])
def test_generated_rows(tmp_path: Path, kind: str) -> None:
    """So are the first rows of a suite, of either kind."""
    rows = generated_rows("apply_rotary_pos_emb_grad", "L0", row_count=200)
    write_rows(tmp_path / "cases.csv", rows, kind)
    path = workbook_of(tmp_path / "cases.csv", tmp_path / "cases.xlsx")
    excel = pack(tmp_path / "excel.xlsx", excel_parts(tmp_path / "cases.csv"))
    for workbook in (path, excel):
        assert_equal(read_cases(tmp_path / "cases.csv"), read_cases(workbook))


@pytest.mark.skipif(not FOLDER, reason="OPFERRY_TTK_DIR names no folder of published case files")
def test_published_files(tmp_path: Path) -> None:
    """So are published rows."""
    for published in sorted(Path(FOLDER).glob("*.csv")):
        path = workbook_of(published, tmp_path / f"{published.stem}.xlsx")
        assert_equal(read_cases(published), read_cases(path))


def test_a_named_sheet(tmp_path: Path, write_file: Callable[..., Path]) -> None:
    """The first sheet is read, or the one that is asked for; others are not looked at."""
    path = workbook_of(write_file({}), tmp_path / "cases.xlsx", "L0", "notes", "more")
    assert read_cases(path, "L0").cases[0].name == "small"
    with pytest.raises(CaseFileError, match="row 1: the header lacks testcase_name"):
        read_cases(path)
    with pytest.raises(CaseFileError, match=r"has no sheet 'L1'; its sheets are \['notes', 'more'"):
        read_cases(path, "L1")


def test_cells_that_are_no_text(tmp_path: Path, row: Mapping[str, str]) -> None:
    """Numbers and booleans are as they are written in a CSV; blank rows and edges do not count."""
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append([])
    numbers = {
        "absolute_precision": 1.0,
        "priority": 2,
        "is_enabled": True,
        "normal_distribution": 0,
    }
    others = {"output_tensor_indexes": 6, "our_ticket": 3.25, "large": 1e300, "nothing": None}
    cells = {**row, **numbers, **others}
    sheet.append([*cells, None, "   "])
    sheet.append([])
    sheet.append([value or (None if value == "" else value) for value in cells.values()])
    sheet["ZZ2"] = None
    book.save(tmp_path / "cases.xlsx")
    (case,) = read_cases(tmp_path / "cases.xlsx").cases
    assert case.row == 4
    assert case.priority == 2
    assert case.is_enabled
    assert not case.normal_distribution
    assert list(case.outputs) == ["grad_query"]
    assert case.absolute_precision == 1
    shown = {name: case.columns[name] for name in ("absolute_precision", *others, "is_enabled")}
    assert shown == {
        "absolute_precision": "1",
        "output_tensor_indexes": "6",
        "our_ticket": "3.25",
        "large": "1e+300",
        "nothing": "",
        "is_enabled": "True",
    }


# a workbook is XML, which has no control characters and turns every line end into \n
TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), max_size=40
) | st.sampled_from(
    ["=1+1", "'quoted", "1.0", "001", " x ", "a\nb", "\tx", "TRUE", "#N/A", "é漢😀"]
)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(texts=["x", " "])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_every_text_survives(
    tmp_path: Path,
    row: Mapping[str, str],
    texts: list[str],
) -> None:
    """What a cell says in a CSV, it says in a workbook."""
    extra = {f"note_{number}": text for number, text in enumerate(texts)}
    with (tmp_path / "cases.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*row, *extra])
        writer.writeheader()
        writer.writerow({**row, **extra})
    path = tmp_path / "cases.csv"
    workbook = workbook_of(path, tmp_path / "cases.xlsx")
    excel = pack(tmp_path / "excel.xlsx", excel_parts(path))
    for case in (read_cases(file).cases[0] for file in (path, workbook, excel)):
        assert {name: case.columns[name] for name in extra} == extra


def test_without_the_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_file: Callable[..., Path],
) -> None:
    """Without openpyxl one line says what to install; CSV is read all the same."""
    csv_path = write_file({})
    path = workbook_of(csv_path, tmp_path / "cases.xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(CaseFileError, match=r"extra xlsx: pip install '\.\[xlsx\]', or save"):
        read_cases(path)
    assert read_cases(csv_path).cases
