"""Generated suites: cases by the ecosystem standard's rules, and cases that must be refused.

    suite = generated_rows("apply_rotary_pos_emb_grad", "L1", seed=0)
    write_rows("cases.csv", suite)

The same arguments give the same bytes on every machine and with every Python.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from opferry.core.problems import Problem, Reason
from opferry.operators import operator_named
from opferry.validation.generation._levels import LEAST_BUDGET_BYTES, LEVELS, Level
from opferry.validation.generation._rotary_forward import ForwardSuite
from opferry.validation.generation._rotary_forward_negatives import forward_negative_rows
from opferry.validation.generation._rotary_grad import GradSuite
from opferry.validation.generation._rotary_grad_negatives import grad_negative_rows
from opferry.validation.generation._rotary_suite import BOTH, DISTRIBUTIONS, RotarySuite
from opferry.validation.generation._row import ACLNN, FORMATS, GeneratedRow, columns_of
from opferry.validation.problems import CaseFileError

__all__ = [
    "DISTRIBUTIONS",
    "FORMATS",
    "LEAST_BUDGET_BYTES",
    "LEVELS",
    "GeneratedRow",
    "Level",
    "generated_rows",
    "negative_rows",
    "write_rows",
]

_T = TypeVar("_T")

SUITES: Mapping[str, type[RotarySuite]] = {
    suite.operator.name: suite for suite in (GradSuite, ForwardSuite)
}
"""What makes an operator's suites, by its CANN name."""

NEGATIVES: Mapping[str, Callable[[], Iterator[GeneratedRow]]] = {
    "ApplyRotaryPosEmbGrad": grad_negative_rows,
    "ApplyRotaryPosEmb": forward_negative_rows,
}
"""What makes an operator's negative cases, by its CANN name."""


def generated_rows(
    operator: str,
    level: str,
    *,
    row_count: int | None = None,
    seed: int = 0,
    largest_bytes: int | None = None,
    distribution: str = BOTH,
) -> Iterator[GeneratedRow]:
    """Return the rows of a suite, each of which satisfies the operator's contract.

    Args:
        operator: its name in any of the users' spellings.
        level: one of `LEVELS`.
        row_count: how many; None: as many as the level has. Fewer are the first of more.
        seed: any integer; other seeds give other cases.
        largest_bytes: the most that the inputs of one case take, gaps in their storage included;
            None: what the level allows.
        distribution: one of `DISTRIBUTIONS`; normal and both fill normal_distribution.
            The standard asks for both.

    Raises:
        Problem: OPERATOR_NOT_SUPPORTED or ATTRIBUTE_INVALID, at the call.
    """
    suite = _of(SUITES, operator)
    for what, given, allowed in (
        ("level", level, tuple(LEVELS)),
        ("distribution", distribution, DISTRIBUTIONS),
    ):
        if given not in allowed:
            raise _not_allowed(what, given, ", ".join(allowed))
    found = LEVELS[level]
    count = found.row_count if row_count is None else row_count
    if count < 1:
        raise _not_allowed("row_count", str(count), "1 and more")
    budget = found.largest_bytes if largest_bytes is None else largest_bytes
    if budget < LEAST_BUDGET_BYTES:
        raise _not_allowed("largest_bytes", str(budget), f"{LEAST_BUDGET_BYTES} and more")
    return suite(level, seed, budget, distribution).rows(count)


def negative_rows(operator: str) -> Iterator[GeneratedRow]:
    """Return cases that break one rule of the operator's contract each.

    Args:
        operator: its name in any of the users' spellings.

    Raises:
        Problem: OPERATOR_NOT_SUPPORTED, at the call.
    """
    return _of(NEGATIVES, operator)()


def write_rows(
    path: str | os.PathLike[str],
    rows: Iterable[GeneratedRow],
    kind: str = ACLNN,
    *,
    negative: bool = False,
) -> int:
    """Write a case file, replacing an old one, and return the number of its rows.

    Args:
        path: the file.
        rows: what `generated_rows` or `negative_rows` gave, of one operator.
        kind: one of `FORMATS`.
        negative: whether the file has the column expected_status.

    Raises:
        CaseFileError: if it cannot be written.
    """
    count = 0
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as stream:
            for count, row in enumerate(rows, 1):
                if count == 1:
                    columns = columns_of(row.operator, kind, negative=negative)
                    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
                    writer.writeheader()
                writer.writerow(row.cells(kind))
    except OSError as error:
        raise CaseFileError(path, None, None, f"cannot be written: {error.strerror}") from error
    return count


def _of(table: Mapping[str, _T], operator: str) -> _T:
    name = operator_named(operator).name
    if name not in table:
        raise Problem(
            Reason.OPERATOR_NOT_SUPPORTED,
            f"no cases can be generated for {name}; they can for {', '.join(table)}",
            argument="operator",
            given=name,
            allowed=", ".join(table),
        )
    return table[name]


def _not_allowed(what: str, given: str, allowed: str) -> Problem:
    return Problem(
        Reason.ATTRIBUTE_INVALID,
        f"{what} is {given}; allowed is {allowed}",
        argument=what,
        given=given,
        allowed=allowed,
    )
