"""The cells of one row, and their place for errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opferry.core.problems import Problem
from opferry.validation.literals import parse_literal
from opferry.validation.problems import CaseFileError, CellError

_DEFAULTS = frozenset(("", "None", "()", "[]", "{}", "(None,)", "((),)", "((None,None),)"))


@dataclass(frozen=True)
class Row:
    """The cells of one row, and its place for errors."""

    path: Path
    """The file."""
    number: int
    """The row as a spreadsheet counts it."""
    cells: Mapping[str, str]
    """The cells by column."""

    def text(self, column: str) -> str:
        """Return a cell without surrounding blanks; "" where the column is missing."""
        return self.cells.get(column, "").strip()

    def literal(self, column: str) -> Any:
        """Return the value of a cell; None where it is empty or missing."""
        text = self.text(column)
        return parse_literal(text) if text else None

    def asks_nothing(self, column: str) -> bool:
        """Return whether a cell is missing, empty, or holds a default of TTK's."""
        return "".join(self.text(column).split()) in _DEFAULTS

    @contextmanager
    def column(self, column: str) -> Iterator[str]:
        """Give what is raised inside its place in the file."""
        try:
            yield column
        except (CellError, Problem) as error:
            raise CaseFileError(self.path, self.number, column, str(error)) from error
