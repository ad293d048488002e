"""What is wrong with a record or a report, said in one line that names file and line."""

from __future__ import annotations

import os


class ReportError(ValueError):
    """A report cannot be made."""


class RecordError(ReportError):
    """The record of a run cannot be used.

    Attributes:
        path: the file.
        line: the line, from 1; None: the whole file.
        message: what is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], line: int | None, message: str) -> None:
        """Describe the fault; line breaks in *message* become spaces."""
        self.path = os.fspath(path)
        self.line = line
        self.message = " ".join(message.split())
        place = self.path if line is None else f"{self.path}, line {line}"
        super().__init__(f"{place}: {self.message}")

    def __reduce__(self) -> tuple[object, ...]:
        return (RecordError, (self.path, self.line, self.message))
