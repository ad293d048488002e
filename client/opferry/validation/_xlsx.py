"""The rows of an Excel workbook, each cell as the text that a CSV would hold."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from datetime import date, time, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from opferry.validation._xlsx_limits import MAX_COLUMNS, check_workbook
from opferry.validation.literals import shown
from opferry.validation.problems import CaseFileError, CellError

_EXACT = 2**53


def xlsx_records(path: Path, sheet: str | None) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each row that is not blank.

    Every row has as many cells as the first, which is the header, unless it has more that are not
    empty.

    Args:
        path: the workbook.
        sheet: the sheet's name; None: the first.

    Raises:
        CaseFileError: if it is no workbook, has no such sheet, or is larger than a case file can
            be; and for a cell that is no plain value.
    """
    try:
        with path.open("rb") as stream, warnings.catch_warnings():
            # what openpyxl leaves out, styles and the like, has no part in cases
            warnings.simplefilter("ignore")
            check_workbook(path, stream)
            stream.seek(0)
            return _read(path, stream, sheet)
    except CaseFileError:
        raise
    except ImportError as error:
        message = (
            "is an Excel workbook, which needs opferry's extra xlsx: pip install '.[xlsx]', or "
            "save the sheet as CSV in UTF-8"
        )
        raise CaseFileError(path, None, None, message) from error
    except zipfile.BadZipFile as error:
        message = f"is no Excel workbook: {error}; save it again as .xlsx, or as CSV in UTF-8"
        raise CaseFileError(path, None, None, message) from error
    # openpyxl lets out whatever its own code stumbles over in a malformed workbook
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:200]
        message = f"is no Excel workbook that can be read ({why}); save it again in Excel"
        raise CaseFileError(path, None, None, message) from error


def _read(path: Path, stream: BinaryIO, sheet: str | None) -> list[tuple[int, list[str]]]:
    from openpyxl import load_workbook

    book = load_workbook(stream, read_only=True, keep_links=False)
    sheets = {found.title: found for found in book.worksheets}
    if not sheets:
        raise CaseFileError(path, None, None, "has no sheet with cells")
    if sheet is not None and sheet not in sheets:
        message = f"has no sheet {shown(sheet)}; its sheets are {shown(list(sheets))}"
        raise CaseFileError(path, None, None, message)
    chosen: Any = sheets[sheet] if sheet is not None else book.worksheets[0]
    # what a sheet says of its own size may be anything, and every row would be filled up to it
    chosen.reset_dimensions()
    records: list[tuple[int, list[str]]] = []
    header: list[str] = []
    for number, cells in enumerate(chosen.iter_rows(), 1):
        if len(cells) > MAX_COLUMNS:
            message = (
                f"reaches beyond the {MAX_COLUMNS} columns that are read; delete the cells that "
                "are not in use"
            )
            raise CaseFileError(path, number, None, message)
        texts = _texts(path, number, header, cells)
        if texts:
            header = header or texts
            records.append((number, texts + [""] * (len(header) - len(texts))))
    return records


def _texts(path: Path, number: int, header: Sequence[str], cells: Sequence[Any]) -> list[str]:
    """Return a row's cells without those at its end that say nothing; none of a blank row."""
    texts: list[str] = []
    for position, cell in enumerate(cells):
        try:
            texts.append(_text(cell.data_type, cell.value))
        except CellError as error:
            column = header[position].strip() if position < len(header) else cell.coordinate
            raise CaseFileError(path, number, column, str(error)) from error
    if not any(text.strip() for text in texts):
        return []
    # below a column's name a space is a text, as it is in a CSV
    while not texts[-1] or (len(texts) > len(header) and not texts[-1].strip()):
        texts.pop()
    return texts


def _text(kind: str, value: Any) -> str:
    if kind == "f":
        raise CellError(
            "has a formula, which is code in a cell; put its value there (paste as values)"
        )
    if value is None:
        return ""
    if kind == "e":
        raise CellError(f"has the error value {shown(value)}; put a value there")
    if isinstance(value, date | time | timedelta):
        raise CellError("is a date or a time; format the cell as text and type it in again")
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return str(value)
