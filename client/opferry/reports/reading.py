"""Reads the record of a run; see `opferry.validation.records` for what stands in it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast, get_origin, get_type_hints

from opferry.reports.problems import RecordError
from opferry.validation.records import (
    FORMAT,
    CaseRecord,
    InputRecord,
    OutputRecord,
    RunRecord,
)

PLAIN_KINDS = (str, int, list, dict)
"""The kinds of value that are looked at when a line is read."""


NUMBER_WORDS = ("nan", "inf", "-inf")
"""The numbers that JSON has no word for."""


class RecordedCase(NamedTuple):
    """A case, and the run that it belongs to."""

    run: RunRecord
    """What it has in common with others; of a run that was resumed, that of its part."""
    case: CaseRecord
    """What came of it."""

    @property
    def status(self) -> str:
        """The verdict: a value of `CaseStatus`."""
        return str(self.case["figures"]["precision_status"])

    @property
    def reason(self) -> str:
        """Why it is not a PASS."""
        return str(self.case["figures"].get("reason") or "")

    def measured(self, name: str) -> float | None:
        """Return a time among the figures, in microseconds; None where it was not measured."""
        value = self.case["figures"].get(name)
        return float(value) if isinstance(value, int | float) and value > 0 else None

    @property
    def standard(self) -> str:
        """The comparison standard, with its edition if it has several."""
        name, edition = (self.case["figures"].get(item) for item in ("standard", "edition"))
        return f"{name or ''} ({edition} edition)" if edition else str(name or "")

    @property
    def command(self) -> str:
        """The command line that runs this case alone."""
        return shlex.join([*self.run["reproduce"], "-t", self.case["name"]])


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run. Cases are kept as text, which takes a tenth of the space."""

    path: Path
    """The file."""
    parts: tuple[RunRecord, ...]
    """What the cases have in common, once for each time that the run was begun or resumed."""
    is_torn: bool
    """Whether a line breaks off: the run was killed."""
    _lines: Mapping[int, tuple[int, int, bytes]] = field(repr=False)
    """Part, line number and line by row; the rows ascend."""

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def common(self) -> RunRecord:
        """What the cases have in common, as it was when the run was last begun or resumed."""
        return self.parts[-1]

    @property
    def missing_count(self) -> int:
        """The rows that were chosen and have no record: the run has ended before them."""
        return max(self.common["row_count"] - len(self), 0)

    def cases(self) -> Iterator[RecordedCase]:
        """Yield the cases in row order; of several records of a row the last one counts."""
        for part, number, line in self._lines.values():
            record = cast(CaseRecord, _parse(self.path, number, line))
            yield RecordedCase(self.parts[part], record)


def read_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Read the record of a run.

    A line that breaks off, as a run that is killed leaves it, is passed over if it is the last one,
    or the run was resumed behind it.

    Args:
        path: the file.

    Raises:
        RecordError: if it cannot be read, is not such a record, or is one of another format.
    """
    path = Path(path)
    reader = _Reader(path)
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    reader.take(number, line)
    except OSError as error:
        raise RecordError(path, None, f"cannot be read: {error.strerror}") from error
    return reader.run()


class _Reader:
    """Takes the lines of a record one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[RunRecord] = []
        self._lines: dict[int, tuple[int, int, bytes]] = {}
        self._was_torn = False
        # the last line, if it is no record: whether that is a fault shows in what follows
        self._broken: RecordError | None = None
        self._is_whole = True

    def take(self, number: int, line: bytes) -> None:
        """Take a line that is not blank."""
        try:
            record = _parse(self._path, number, line)
        except RecordError as error:
            if self._broken is not None or not self._parts:
                raise self._broken or error from error
            self._broken, self._is_whole = error, line.endswith(b"\n")
            return
        kind = record.get("kind")
        if self._broken is not None:
            if kind != "run":
                raise self._broken
            self._broken, self._was_torn = None, True
        if kind == "run":
            self._parts.append(_run(self._path, number, record))
        elif not self._parts:
            raise RecordError(self._path, number, f"is no record of a run, format {FORMAT}")
        elif kind == "case":
            row = _row(self._path, number, record)
            self._lines[row] = (len(self._parts) - 1, number, line)

    def run(self) -> RecordedRun:
        """Return what the lines were."""
        if not self._parts:
            raise RecordError(self._path, None, "is empty")
        if self._broken is not None and self._is_whole:
            raise self._broken
        is_torn = self._was_torn or self._broken is not None
        return RecordedRun(
            self._path, tuple(self._parts), is_torn, dict(sorted(self._lines.items()))
        )


def _no_such_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_such_number)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        hint = "" if number > 1 else "; the record is the .jsonl file beside a result"
        raise RecordError(path, number, f"is not JSON: {error}{hint}") from error
    if not isinstance(record, dict):
        raise RecordError(path, number, "is no JSON object")
    return record


def _run(path: Path, number: int, record: dict[str, Any]) -> RunRecord:
    if record.get("format") != FORMAT:
        given = str(record.get("format"))[:40]
        raise RecordError(path, number, f"has the format {given}; {FORMAT} is read")
    _check(path, number, record, RunRecord)
    return cast(RunRecord, record)


def _row(path: Path, number: int, record: dict[str, Any]) -> int:
    _check(path, number, record, CaseRecord)
    for item in record["inputs"]:
        _check(path, number, item, InputRecord)
    for item in record["outputs"]:
        _check(path, number, item, OutputRecord)
        for name, value in item["figures"].items():
            if not isinstance(value, int | float) and value not in NUMBER_WORDS:
                raise RecordError(path, number, f"has {str(value)[:40]} as {name}")
    if not all(isinstance(value, str) for value in record["groups"].values()):
        raise RecordError(path, number, f"has {str(record['groups'])[:40]} as groups")
    if "precision_status" not in record["figures"]:
        raise RecordError(path, number, "has no precision_status")
    return int(record["row"])


def _check(path: Path, number: int, record: Any, kind: type) -> None:
    """Refuse a record that lacks a key, or has something else in the place of a plain value."""
    if not isinstance(record, dict):
        raise RecordError(path, number, f"has {str(record)[:40]} where an object belongs")
    for name, plain in _keys(kind).items():
        if name not in record:
            raise RecordError(path, number, f"has no {name}")
        if plain in PLAIN_KINDS and not isinstance(record[name], plain):
            raise RecordError(path, number, f"has {str(record[name])[:40]} as {name}")


@cache
def _keys(kind: type) -> dict[str, Any]:
    """Return the keys of a record, each with what its value is: a class, or a form of Union."""
    return {name: get_origin(hint) or hint for name, hint in get_type_hints(kind).items()}
