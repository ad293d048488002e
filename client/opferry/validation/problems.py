"""What is wrong with a case file, said in one line that names file, row and column."""

from __future__ import annotations

import os


class CellError(ValueError):
    """A cell cannot be understood; the reader of the file adds file, row and column."""


class CaseFileError(ValueError):
    """A case file cannot be used as it is.

    Attributes:
        path: the file.
        row: the row as a spreadsheet counts it (the header is row 1); None: the whole file.
        column: the column's name in the file; None: the whole row.
        message: what is wrong with it, and what is allowed.
    """

    def __init__(
        self, path: str | os.PathLike[str], row: int | None, column: str | None, message: str
    ) -> None:
        """Describe the fault; line breaks in *message* become spaces."""
        self.path = os.fspath(path)
        self.row = row
        self.column = column
        self.message = " ".join(message.split())
        place = self.path
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {self.message}")

    def __reduce__(self) -> tuple[object, ...]:
        return (CaseFileError, (self.path, self.row, self.column, self.message))
