"""Which cases of a file are to run, by TTK's words.

Each word is a condition; a case is chosen if it satisfies all that are given. What a word names and
the file does not have is an error, and so is a choice that leaves nothing: a run of no cases would
look like one that passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256

from opferry.core.problems import Problem
from opferry.operators import operator_named
from opferry.validation.case import Case, CaseFile
from opferry.validation.literals import shown
from opferry.validation.problems import CaseFileError

RERUN_COLUMNS = ("precision_status", "perf_status")
"""The columns of results by which rows can be run again."""

PASSED = ("PASS", "EXECUTED")
"""What such a column says of a row that need not run again."""


def select(
    case_file: CaseFile,
    *,
    names: Iterable[str] | None = None,
    indexes: Iterable[int | range] | None = None,
    count: int | None = None,
    seed: int = 0,
    operators: Iterable[str] | None = None,
    priorities: Iterable[int | range] | None = None,
    soc: str | None = None,
    rerun: str | None = None,
) -> tuple[Case, ...]:
    """Return the cases that satisfy every condition given, in the file's order.

    Args:
        case_file: the file.
        names: testcase names (-t).
        indexes: positions among the file's rows (--ti), disabled ones included, as TTK counts
            them: from 0, the header and blank rows left out. `parse_ranges` makes them of a word.
        count: how many to choose of those that all other conditions leave (--tc); fewer than that
            many are all taken.
        seed: decides which are chosen: the same ones on every machine.
        operators: api names as the rows have them, or operators in any of the users' spellings
            (--op).
        priorities: priorities (--priority); a row without one has 0.
        soc: the SoC on which the cases are to run. A row is left out if its soc_series names other
            SoCs only, or this one with a minus; capital letters do not matter.
        rerun: a column, or several with commas between, of `RERUN_COLUMNS` (--rerun): the case file
            is itself an earlier result, and of its enabled rows those are chosen of which one of
            these columns says anything but PASS.

    Raises:
        CaseFileError: naming what the file does not have, or that no case is left.
        ValueError: if count is below 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"count is {count}; give 1 or more")
    cases = case_file.cases
    conditions: dict[str, Callable[[Case], bool]] = {}
    if names is not None:
        conditions["names"] = _by_name(case_file, frozenset(names))
    if indexes is not None:
        conditions["positions"] = _by_position(case_file, _ranges(indexes))
    if operators is not None:
        conditions["operators"] = _by_operator(case_file, tuple(operators))
    if priorities is not None:
        ranges = _ranges(priorities)
        conditions["priorities"] = lambda case: _is_in(case.priority or 0, ranges)
    if soc is not None:
        word = soc.strip().lower()
        conditions[f"SoC {shown(soc)}"] = lambda case: _is_for(case, word)
    if rerun is not None:
        conditions[f"not {PASSED[0]} in {rerun}"] = _failed_before(case_file, rerun)
    chosen = tuple(case for case in cases if all(holds(case) for holds in conditions.values()))
    if not chosen:
        message = f"has no case that satisfies what was chosen by: {', '.join(conditions)}"
        raise CaseFileError(case_file.path, None, None, message)
    return chosen if count is None else _some(chosen, count, seed)


def parse_ranges(text: str) -> tuple[range, ...]:
    """Return the numbers of a word such as "3", "1-10", "1,3,7-9", "5-" or "-3".

    Ends are included. A range that is open above has no end; one that is open below starts at 0.

    Args:
        text: the word.

    Raises:
        ValueError: saying what is no number or range.
    """
    found: list[range] = []
    for part in text.split(","):
        low, dash, high = (piece.strip() for piece in part.partition("-"))
        given = [piece for piece in (low, high) if piece]
        if not given or not all(piece.isascii() and piece.isdigit() for piece in given):
            raise ValueError(
                f"{part.strip()!r} is no number and no range; give 3, 1-10, or several with commas"
            )
        start = int(low or 0)
        stop = start if not dash else int(high) if high else sys.maxsize - 1
        if stop < start:
            raise ValueError(f"{part.strip()!r} ends before it starts; give the lower end first")
        found.append(range(start, stop + 1))
    return tuple(found)


def _ranges(numbers: Iterable[int | range]) -> tuple[range, ...]:
    return tuple(
        range(number, number + 1) if isinstance(number, int) else number for number in numbers
    )


def _is_in(number: int, ranges: Iterable[range]) -> bool:
    return any(number in found for found in ranges)


def _by_name(case_file: CaseFile, wanted: Collection[str]) -> Callable[[Case], bool]:
    missing = sorted(set(wanted) - {case.name for case in case_file.cases})
    if missing:
        raise CaseFileError(case_file.path, None, None, f"has no case named {', '.join(missing)}")
    return lambda case: case.name in wanted


def _by_position(case_file: CaseFile, ranges: Sequence[range]) -> Callable[[Case], bool]:
    count = len(case_file.cases)
    for found in ranges:
        # an end that is left open reaches as far as there are rows
        last = found.start if found.stop == sys.maxsize else found.stop - 1
        if found.start < 0 or last >= count:
            message = f"has no row at position {last}; its {count} rows are at 0 to {count - 1}"
            raise CaseFileError(case_file.path, None, None, message)
    positions = {id(case): position for position, case in enumerate(case_file.cases)}
    return lambda case: _is_in(positions[id(case)], ranges)


def _by_operator(case_file: CaseFile, words: Sequence[str]) -> Callable[[Case], bool]:
    api_names = {case.columns["api_name"].strip() for case in case_file.cases}
    present = {case.operator.name for case in case_file.cases}
    wanted_apis: set[str] = set()
    wanted: set[str] = set()
    for word in (given.strip() for given in words):
        if word in api_names:
            wanted_apis.add(word)
            continue
        try:
            name = operator_named(word).name
        except Problem:
            name = ""
        if name not in present:
            message = (
                f"has no case for {shown(word)}; it has cases for {', '.join(sorted(present))}"
            )
            raise CaseFileError(case_file.path, None, None, message)
        wanted.add(name)
    return lambda case: (
        case.columns["api_name"].strip() in wanted_apis or case.operator.name in wanted
    )


def _is_for(case: Case, soc: str) -> bool:
    series = [word.lower() for word in case.soc_series]
    only = [word for word in series if not word.startswith("-")]
    return f"-{soc}" not in series and (not only or soc in only)


def failed_before(case_file: CaseFile, rerun: str) -> int:
    """Return how many rows of an earlier result did not pass; see `select`.

    Raises:
        CaseFileError: if the file is no such result.
    """
    failed = _failed_before(case_file, rerun)
    return sum(failed(case) for case in case_file.cases)


def _failed_before(case_file: CaseFile, words: str) -> Callable[[Case], bool]:
    columns = [word.strip().lower() for word in words.split(",") if word.strip()]
    for column in columns or [words]:
        if column not in RERUN_COLUMNS:
            message = f"cannot be chosen from by {shown(column)}; give {' or '.join(RERUN_COLUMNS)}"
            raise CaseFileError(case_file.path, None, None, message)
        if column not in case_file.columns:
            message = f"has no column {column}; give the result file of an earlier run as input"
            raise CaseFileError(case_file.path, None, None, message)
    return lambda case: (
        case.is_enabled and any(case.columns[column].strip() not in PASSED for column in columns)
    )


def _some(cases: Sequence[Case], count: int, seed: int) -> tuple[Case, ...]:
    """Return *count* of the cases; `random` might choose others in another Python."""

    def rank(case: Case) -> bytes:
        return sha256(f"{seed} {case.name}".encode()).digest()

    names = {case.name for case in sorted(cases, key=rank)[:count]}
    return tuple(case for case in cases if case.name in names)
