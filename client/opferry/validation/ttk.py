"""Reads the case files of CANN's ops-test-kit (TTK), ACLNN and E2E, in CSV and in Excel workbooks.

What real files hold beyond TTK's documents, and is taken as it is meant: the storage column in two
spellings; a tensor that is absent by its shape though its dtype is given; outputs that are listed
though the inputs they need are absent; attributes by their C or Python names; more ranges than
tensors; columns that are missing or empty. A column or cell that would change the result and is not
served is refused by name. Whether a row satisfies the operator's contract shows when it runs.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from opferry.validation._batch_cells import BATCH_COLUMNS
from opferry.validation._named_files import GOLDEN_COLUMN, INPUT_COLUMN
from opferry.validation._row import Row
from opferry.validation._rows import (
    EXPECTED_STATUS,
    NOT_SERVED,
    REQUIRED_COLUMNS,
    STORAGE_COLUMNS,
    case_from_row,
)
from opferry.validation._xlsx import xlsx_records
from opferry.validation._xlsx_limits import MAX_COLUMNS
from opferry.validation.case import Case, CaseFile
from opferry.validation.literals import shown
from opferry.validation.problems import CaseFileError

KNOWN_COLUMNS = frozenset(
    (
        *REQUIRED_COLUMNS,
        *STORAGE_COLUMNS,
        *NOT_SERVED,
        *BATCH_COLUMNS,
        *(INPUT_COLUMN, GOLDEN_COLUMN),
        *("network_name", "tensor_formats", "tensor_view_offsets", "tensor_view_strides"),
        *("attributes", "output_tensor_indexes", "output_inplace_indexes", "absolute_precision"),
        *("precision_tolerances", "input_data_ranges", "normal_distribution", "remark"),
        *("is_enabled", "soc_series", "priority", "dump_file_prefix"),
        EXPECTED_STATUS,
    )
)
"""Every column of TTK's ACLNN and E2E files, and our own."""


_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_WORKBOOKS = (".xlsx", ".xlsm")


def read_cases(path: str | os.PathLike[str], sheet: str | None = None) -> CaseFile:
    """Read a case file.

    Args:
        path: a CSV file in UTF-8, with or without byte-order mark, with any line ends; or an Excel
            workbook (.xlsx), which needs the extra xlsx.
        sheet: which sheet of a workbook; None: the first.

    Raises:
        CaseFileError: for the first fault, with file, row and column in one line.
    """
    file = Path(path)
    records = _records(file, sheet)
    number, header = next(records, (1, []))
    columns = _header(file, number, header)
    cases: list[Case] = []
    rows: dict[str, int] = {}
    for number, cells in records:
        if len(cells) != len(columns):
            message = f"has {len(cells)} cells; the header has {len(columns)}"
            raise CaseFileError(file, number, None, message)
        case = case_from_row(Row(file, number, dict(zip(columns, cells, strict=True))))
        if case.name in rows:
            message = f"{shown(case.name)} is also the name of row {rows[case.name]}; rename one"
            raise CaseFileError(file, number, "testcase_name", message)
        rows[case.name] = number
        cases.append(case)
    if not cases:
        raise CaseFileError(file, None, None, "has a header but no rows")
    unknown = tuple(column for column in columns if column not in KNOWN_COLUMNS)
    return CaseFile(file, columns, tuple(cases), unknown)


def _records(path: Path, sheet: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each row that is not blank."""
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise CaseFileError(path, None, None, f"cannot be read: {error.strerror}") from error
    suffix = path.suffix.lower()
    if suffix == ".xls" or start == _OLE:
        message = (
            "is an Excel workbook of the old kind (.xls), or one with a password; save it as "
            ".xlsx without a password, or as CSV in UTF-8"
        )
        raise CaseFileError(path, None, None, message)
    if suffix in _WORKBOOKS or start.startswith(_ZIP):
        yield from xlsx_records(path, sheet)
        return
    if sheet is not None:
        message = f"is no Excel workbook, and so has no sheet {shown(sheet)}; leave the sheet out"
        raise CaseFileError(path, None, None, message)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CaseFileError(path, None, None, "is UTF-16 text; save it as UTF-8")
    yield from _csv_records(path)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for number, cells in enumerate(csv.reader(stream, strict=True), 1):
                # older Pythons refuse it themselves
                if any("\0" in cell for cell in cells):
                    message = "is not CSV: line contains NUL"
                    raise CaseFileError(path, number, None, message)
                if any(cell.strip() for cell in cells):
                    yield number, cells
    except OSError as error:
        raise CaseFileError(path, None, None, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: {error.reason}; save it as UTF-8"
        raise CaseFileError(path, number + 1, None, message) from error
    except csv.Error as error:
        raise CaseFileError(path, number + 1, None, f"is not CSV: {error}") from error


def _header(path: Path, number: int, cells: Sequence[str]) -> tuple[str, ...]:
    columns = tuple(cell.strip() for cell in cells)
    if not columns:
        raise CaseFileError(path, None, None, "is empty; a case file starts with a header")
    if len(columns) > MAX_COLUMNS:
        message = f"has {len(columns)} columns; a case file has at most {MAX_COLUMNS}"
        raise CaseFileError(path, number, None, message)
    for position, column in enumerate(columns, 1):
        if not column:
            message = f"column {position} has no name; each column of the table has one"
            raise CaseFileError(path, number, None, message)
        if columns.index(column) != position - 1:
            raise CaseFileError(path, number, column, "is there twice")
    for column in columns:
        near = () if column in KNOWN_COLUMNS else get_close_matches(column, KNOWN_COLUMNS, 1, 0.9)
        if near:
            message = f"is no column of TTK's; rename it to {near[0]} if that is meant"
            raise CaseFileError(path, number, column, message)
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    if missing:
        message = f"the header lacks {', '.join(missing)}; this is no ACLNN or E2E file of TTK"
        raise CaseFileError(path, number, None, message)
    if all(column in columns for column in STORAGE_COLUMNS):
        message = f"is there, and so is {STORAGE_COLUMNS[0]}; keep one"
        raise CaseFileError(path, number, STORAGE_COLUMNS[1], message)
    return columns
