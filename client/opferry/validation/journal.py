"""The record of a run while it is written, and after it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from opferry.validation._locks import cut, open_alone
from opferry.validation.outcome import CaseResult, CaseStatus
from opferry.validation.problems import CaseFileError
from opferry.validation.records import FORMAT, RunRecord, case_record, line_of

MUST_AGREE = ("case_file_sha256", "settings")
"""What a run that goes on has in common with its beginning."""

SAME_SERVER = ("backend", "real_device")
"""What the servers of its parts have in common."""

Figures = Mapping[str, Any]
"""What the result file says of a case, by column."""


class Journal:
    """Writes the record of a run, line by line, so that a run that is killed leaves whole lines."""

    def __init__(
        self, path: str | os.PathLike[str], run: RunRecord, *, resume: bool = False
    ) -> None:
        """Begin a record, or go on with one.

        An old one is replaced; that of an interrupted run is kept, under another name.

        Args:
            path: the file.
            run: what the run has in common.
            resume: go on with the record that is there.

        Raises:
            CaseFileError: if it cannot be written, or is no record of such a run.
        """
        self._path = Path(path)
        self.done: Mapping[int, Figures] = {}
        """The figures of the rows that had their verdict before, by row."""
        self.set_aside: Path | None = None
        """Where the record of an interrupted run is now that this one has taken the place of."""
        if resume and not self._path.exists():
            message = "is not there: there is no run to go on with; leave out --resume"
            raise CaseFileError(self._path, None, None, message)
        try:
            # read when nobody else writes to it any more
            self._stream = open_alone(self._path)
            try:
                end = 0
                if resume:
                    self.done, end = _read(self._path, partial(_check_same, self._path, run))
                elif _is_interrupted(self._path):
                    self.set_aside = _free_name(self._path)
                    shutil.copyfile(self._path, self.set_aside)
                cut(self._stream, end)  # also a line that was cut short
                self._put(line_of(run))
            except BaseException:
                self._stream.close()
                raise
        except OSError as error:
            raise self._failed(error) from error

    def write(self, result: CaseResult) -> None:
        """Append what came of a case; it is in the file when this returns.

        Raises:
            CaseFileError: if it cannot be written.
        """
        self._put(line_of(case_record(result)))

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._stream.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _put(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CaseFileError:
        return CaseFileError(self._path, None, None, f"cannot be written: {error.strerror}")


def _read(path: Path, check: Callable[[Mapping[str, Any]], None]) -> tuple[dict[int, Figures], int]:
    """Return the figures of the rows that have a verdict, and where the last whole line ends.

    Args:
        path: a record.
        check: looks at its first line.

    Raises:
        CaseFileError: if it is no record, or what *check* raises.
    """
    done: dict[int, Figures] = {}
    end = number = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    break
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise TypeError("a line is no object")
                if number == 1:
                    check(record)
                if record["kind"] == "case":
                    row, figures = int(record["row"]), _checked(record["figures"])
                    done[row] = figures
                    if figures["precision_status"] == CaseStatus.NOT_RUN.value:
                        del done[row]
                end += len(line)
    except CaseFileError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"is no record of a run: {error}; give the -o of the run that is to go on"
        raise CaseFileError(path, number, None, message) from error
    if not number:
        raise CaseFileError(path, None, None, "is empty; there is nothing to go on with")
    return done, end


def _is_interrupted(path: Path) -> bool:
    """Return whether a file is the record of a run of which some rows, not all, have a verdict."""
    if not path.is_file():
        return False
    first: dict[str, Any] = {}
    try:
        done, _ = _read(path, first.update)
    except CaseFileError:
        return False
    row_count = first.get("row_count")
    return first.get("kind") == "run" and isinstance(row_count, int) and 0 < len(done) < row_count


def _free_name(path: Path) -> Path:
    names = (f"{path.name}.interrupted{n if n > 1 else ''}" for n in count(1))
    return next(name for name in map(path.with_name, names) if not name.exists())


def _check_same(path: Path, run: RunRecord, record: Mapping[str, Any]) -> None:
    if record.get("kind") != "run" or record.get("format") != FORMAT:
        raise CaseFileError(path, 1, None, f"is no record of the format {FORMAT}")
    differing = [name for name in MUST_AGREE if record.get(name) != run[name]]  # type: ignore[literal-required]
    before, now = record.get("server") or {}, run["server"]
    other = [name for name in SAME_SERVER if before and now and before.get(name) != now.get(name)]
    if not differing and not other:
        return
    said = [f"{name} was {_word(before.get(name))} and is {_word(now.get(name))}" for name in other]
    if "case_file_sha256" in differing:
        said.append(f"the case file {run['case_file']} is another, or has changed since")
    mine, theirs = run["settings"], record.get("settings", {})
    said += [
        f"{name} was {_word(theirs.get(name))} and is {_word(mine[name])}"
        for name in mine
        if mine[name] != theirs.get(name)
    ]
    message = f"is the record of another run: {'; '.join(said)}. Give the same words, or another -o"
    raise CaseFileError(path, None, None, message)


def _checked(figures: Any) -> Figures:
    """Return figures as a record has them.

    Raises:
        ValueError: for a verdict or a number that is none.
        TypeError: for anything but plain values.
    """
    if not isinstance(figures, dict) or not all(
        value is None or isinstance(value, (str, int, float)) for value in figures.values()
    ):
        raise TypeError("figures are no plain values by name")
    CaseStatus(figures["precision_status"])
    for name, value in figures.items():
        if name.endswith(("_us", "_error", "_share")) and value not in (None, ""):
            float(value)
        if isinstance(value, str):
            value.encode()
    return figures


def _word(value: Any) -> str:
    return "not given" if value in (None, "") else str(value)
