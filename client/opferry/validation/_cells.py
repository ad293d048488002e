"""The columns of a row that hold one entry for each tensor, or one for each output."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from opferry.core.dtypes import DType, not_allowed
from opferry.core.problems import Problem
from opferry.validation.case import Tolerance
from opferry.validation.literals import is_number, parse_literal, shown
from opferry.validation.problems import CellError

ASKS_NOTHING = (None, (), (None, None))
"""Entries that stand for the default."""

_SOC = re.compile(r"-?\w{1,40}")


def entries(value: Any, count: int, what: str) -> list[Any]:
    """Return one entry for each of *count* tensors or outputs.

    As in TTK, one entry alone stands for all of them. Missing entries at the end are None.
    Published files also have entries too many, which must ask for nothing.

    Args:
        value: the cell's value; None for an empty cell.
        count: how many are wanted.
        what: what there are so many of, for the error's text.

    Raises:
        CellError: if it is no tuple, or has an entry too many that asks for something.
    """
    if value is None:
        return [None] * count
    if not isinstance(value, tuple):
        raise CellError(f"is {shown(value)}; give a tuple with one entry for each of the {what}")
    if len(value) == 1:
        return list(value) * count
    if any(entry not in ASKS_NOTHING for entry in value[count:]):
        raise CellError(f"has {len(value)} entries for {count} {what}")
    return [*value[:count], *[None] * (count - len(value))]


def shapes(value: Any, count: int) -> list[tuple[int, ...] | None]:
    """Return the shape of each of *count* tensors; None where absent.

    Raises:
        CellError: for anything but a tuple of shapes.
    """
    if not isinstance(value, tuple) or not value:
        raise CellError(f"is {shown(value)}; give a tuple with one shape or None for each tensor")
    found = [None if entry is None else integers(entry, "shape") for entry in value]
    return found + [None] * (count - len(found))


def integers(entry: Any, what: str) -> tuple[int, ...]:
    """Return a tuple of integers.

    Raises:
        CellError: for anything else, tensor lists among it.
    """
    if isinstance(entry, tuple) and all(type(number) is int for number in entry):
        return entry
    if isinstance(entry, tuple) and any(isinstance(part, tuple) for part in entry):
        raise CellError(f"has the tensor list {shown(entry)}; this operator takes single tensors")
    raise CellError(f"has {shown(entry)}; a {what} is a tuple of integers, such as (2, 3), or None")


def dtypes(
    value: Any, present: Sequence[tuple[int, ...] | None], names: Sequence[str]
) -> list[DType | None]:
    """Return the dtype of each tensor that is present; of an absent one the cell may say anything.

    Raises:
        CellError: for a present tensor without one.
        Problem: DTYPE_NOT_ALLOWED for any other word than those of the three dtypes.
    """
    found: list[DType | None] = []
    for entry, shape, name in zip(
        entries(value, len(names), "tensors"), present, names, strict=True
    ):
        if shape is not None and not isinstance(entry, str):
            raise CellError(f"has {shown(entry)} for {name}, whose shape is {shown(shape)}")
        try:
            found.append(None if shape is None else DType.parse(entry))
        except Problem:
            raise not_allowed(name, entry[:40]) from None
    return found


def integer_tuples(value: Any, count: int, what: str) -> list[tuple[int, ...] | None]:
    """Return each tensor's tuple of integers, or None; for strides and storage shapes.

    Raises:
        CellError: for anything else.
    """
    return [
        None if entry in ASKS_NOTHING else integers(entry, what)
        for entry in entries(value, count, "tensors")
    ]


def offsets(value: Any, count: int) -> list[int]:
    """Return each tensor's offset in elements.

    Raises:
        CellError: for anything but integers and None.
    """
    found: list[int] = []
    for entry in entries(value, count, "tensors"):
        if entry is not None and type(entry) is not int:
            raise CellError(f"has {shown(entry)}; an offset is an integer or None")
        found.append(entry or 0)
    return found


def formats(value: Any, count: int) -> None:
    """Refuse a format that is not ND.

    Raises:
        CellError: naming it.
    """
    for entry in entries(value, count, "tensors"):
        if entry not in (*ASKS_NOTHING, "ND"):
            raise CellError(f"has {shown(entry)}; only ND is served")


def tolerances(pairs: Any, names: Sequence[str]) -> dict[str, Tolerance]:
    """Return each listed output's (rtol, ptol).

    Raises:
        CellError: for anything but pairs of numbers not below 0, the second at most 1.
    """
    found: dict[str, Tolerance] = {}
    for name, pair in zip(names, entries(pairs, len(names), "outputs"), strict=True):
        if pair in ASKS_NOTHING:
            found[name] = Tolerance()
            continue
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and all(map(_is_tolerance, pair))
            and pair[1] <= 1
        ):
            raise CellError(
                f"has {shown(pair)} for {name}; give (rtol, share of elements that may miss), both "
                "0 or more, the share at most 1"
            )
        found[name] = Tolerance(float(pair[0]), float(pair[1]))
    return found


def _is_tolerance(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def absolute_tolerances(value: Any, names: Sequence[str]) -> list[float | None]:
    """Return each listed output's absolute tolerance; one number alone stands for all.

    Raises:
        CellError: for anything but numbers not below 0.
    """
    given = entries(value if isinstance(value, tuple) else (value,), len(names), "outputs")
    for number in given:
        if number is not None and not _is_tolerance(number):
            raise CellError(f"has {shown(number)}; give a number, 0 or more")
    return [None if number is None else float(number) for number in given]


def flag(text: str, default: bool) -> bool:
    """Return a cell that says yes or no, in Python's or a spreadsheet's spelling.

    Args:
        text: the cell.
        default: what an empty cell means.

    Raises:
        CellError: for anything but True, False, 1 and 0.
    """
    word = text.strip().lower()
    if word in ("", "none"):
        return default
    if word not in ("true", "false", "1", "0"):
        raise CellError(f"is {shown(text)}; give True or False")
    return word in ("true", "1")


def soc_series(text: str) -> tuple[str, ...]:
    """Return the SoCs of a cell: a tuple of words, one word, or words with commas between.

    Args:
        text: the cell, without surrounding blanks.

    Raises:
        CellError: for anything but words, each with a minus before it or not.
    """
    if text in ("", "None"):
        return ()
    value = parse_literal(text) if text[0] in "([{'\"" else tuple(text.split(","))
    given = value if isinstance(value, tuple) else (value,)
    words = tuple(word.strip() if isinstance(word, str) else word for word in given)
    for word in words:
        if not isinstance(word, str) or not _SOC.fullmatch(word):
            raise CellError(
                f"has {shown(word)}; a SoC is a word such as Ascend910B, or -Ascend910B to leave "
                "it out"
            )
    return words


def priority(value: Any) -> int | None:
    """Return a row's priority.

    Raises:
        CellError: for anything but an integer and None.
    """
    if value is not None and type(value) is not int:
        raise CellError(f"is {shown(value)}; a priority is an integer")
    return value
