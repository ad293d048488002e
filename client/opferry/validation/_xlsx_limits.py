"""What an Excel workbook may hold: looked at before it is parsed, in bounded time and memory.

A workbook is a zip archive of XML, and a small one can unpack to any size. The parts are unpacked
here piece by piece and only counted, so that what parses them afterwards has a bounded task.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, BinaryIO
from xml.parsers import expat

from opferry.validation.problems import CaseFileError

MAX_ROWS = 2**20
"""The most rows, as in Excel itself."""

MAX_COLUMNS = 1024
"""The most columns; TTK's files and results have some hundred."""

MAX_UNPACKED_BYTES = 128 * 2**20
"""The most that the archive may unpack to; 30,000 rows of a suite take 50 MiB."""

MAX_ELEMENTS = 4_000_000
"""The most XML elements in rows and texts; 30,000 rows of a suite take 1.5 million."""

MAX_OTHER_ELEMENTS = 100_000
"""The most XML elements beside them: styles, links, merged cells."""

_PIECE = 2**20


def check_workbook(path: Path, stream: BinaryIO) -> None:
    """Check that a workbook can be parsed in bounded time and memory.

    Args:
        path: the workbook, for the error's text.
        stream: its bytes.

    Raises:
        CaseFileError: if it is too large, has a document type, or rows out of order.
        BadZipFile: if it is no zip archive or a damaged one.
    """
    with zipfile.ZipFile(stream) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_UNPACKED_BYTES:
            message = (
                f"unpacks to {unpacked} bytes; at most {MAX_UNPACKED_BYTES} are read: split the "
                "file, or save it as CSV"
            )
            raise CaseFileError(path, None, None, message)
        counts = _Counts(path)
        for member in archive.infolist():
            with archive.open(member) as part:
                counts.scan(part)


class _Counts:
    """Counts the elements of a workbook's parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._in_tables = 0
        self._others = 0
        self._row = 0
        self._cells = 0
        self._inside = 0

    def scan(self, part: IO[bytes]) -> None:
        """Count the elements of one part; one that is no XML has none."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler = self._started
        parser.EndElementHandler = self._ended
        parser.StartDoctypeDeclHandler = self._refuse_document_type
        self._row = self._cells = self._inside = 0
        while piece := part.read(_PIECE):
            try:
                parser.Parse(piece)
            except expat.ExpatError:
                # an image, or XML that is malformed: what parses it stops at the same place
                return

    def _started(self, name: str, attributes: dict[str, str]) -> None:
        word = name.rpartition(" ")[2]
        if word == "row":
            self._start_row(attributes)
        elif word == "c" and self._inside:
            self._cells += 1
            if self._cells > MAX_COLUMNS:
                message = f"has more than {MAX_COLUMNS} cells; a case file has no so many columns"
                raise CaseFileError(self._path, self._row or None, None, message)
        if word in ("row", "si") or self._inside:
            self._inside += 1
            self._in_tables += 1
        else:
            self._others += 1
        if self._in_tables > MAX_ELEMENTS or self._others > MAX_OTHER_ELEMENTS:
            message = "has more cells, styles or links than are read: split it, or save it as CSV"
            raise CaseFileError(self._path, None, None, message)

    def _ended(self, _: str) -> None:
        if self._inside:
            self._inside -= 1

    def _start_row(self, attributes: dict[str, str]) -> None:
        self._cells = 0
        given = attributes.get("r", "")
        # a number that is none is refused by what parses it
        number = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
        number = number or self._row + 1
        if number <= self._row:
            message = f"comes after row {self._row}; save the workbook again in Excel"
            raise CaseFileError(self._path, number, None, message)
        if number > MAX_ROWS:
            message = f"is beyond the {MAX_ROWS} rows that are read; delete what is not in use"
            raise CaseFileError(self._path, number, None, message)
        self._row = number

    def _refuse_document_type(self, *_: object) -> None:
        message = "has a document type inside, which no workbook has; save it again in Excel"
        raise CaseFileError(self._path, None, None, message)
