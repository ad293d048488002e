"""The columns that name files: inputs that are not generated, goldens that are not computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opferry.core.problems import Problem
from opferry.core.tensors import TensorSpec, check_storage
from opferry.operators.base import Operator
from opferry.validation._row import Row
from opferry.validation.binaries import check_binary
from opferry.validation.literals import parse_literal, shown
from opferry.validation.problems import CellError

INPUT_COLUMN = "manual_tensor_binaries"
"""One path or None for each tensor, in the order of tensor_view_shapes."""

GOLDEN_COLUMN = "manual_golden_binaries"
"""One path or None for each output that the row lists, in its order."""


def input_files(row: Row, operator: Operator, inputs: Mapping[str, TensorSpec]) -> dict[str, Path]:
    """Return the files of a row's inputs; an input without one is generated.

    Args:
        row: the row.
        operator: its operator.
        inputs: the inputs that are present.

    Raises:
        CaseFileError: for a file that is missing or does not fit, and for one that belongs to an
            output or to an absent input.
    """
    with row.column(INPUT_COLUMN) as column:
        entries = _paths(row, column)
        names = [declared.name for declared in operator.inputs]
        if len(entries) > len(names) + len(operator.outputs):
            raise CellError(
                f"names {len(entries)} files; {operator.name} has {len(names)} inputs and "
                f"{len(operator.outputs)} outputs"
            )
        if any(entry is not None for entry in entries[len(names) :]):
            raise CellError(f"names a file for an output; {GOLDEN_COLUMN} is the place for it")
        found: dict[str, Path] = {}
        for name, path in zip(names, entries, strict=False):
            if path is None:
                continue
            if name not in inputs:
                raise CellError(f"names {path} for {name}, which is absent: its shape is None")
            _check(path, name, inputs[name])
            found[name] = path
        return found


def golden_files(row: Row, outputs: Mapping[str, TensorSpec | None]) -> dict[str, Path]:
    """Return the files of a row's goldens; an output without one has a computed golden.

    Args:
        row: the row.
        outputs: the outputs that it lists.

    Raises:
        CaseFileError: for a file that is missing or does not fit, and for one too many.
    """
    with row.column(GOLDEN_COLUMN) as column:
        entries = _paths(row, column)
        if len(entries) > len(outputs):
            raise CellError(f"names {len(entries)} files for {len(outputs)} listed outputs")
        found: dict[str, Path] = {}
        for (name, spec), path in zip(outputs.items(), entries, strict=False):
            if path is not None:
                _check(path, name, spec)
                found[name] = path
        return found


def _paths(row: Row, column: str) -> list[Path | None]:
    text = row.text(column)
    if row.asks_nothing(column):
        return []
    # TTK takes a path without quotes as well
    value = parse_literal(text) if text[0] in "([{'\"" else text
    entries = value if isinstance(value, tuple) else (value,)
    return [None if entry in (None, "") else _path(row, entry) for entry in entries]


def _path(row: Row, entry: Any) -> Path:
    if not isinstance(entry, str):
        raise CellError(f"has {shown(entry)}; give a path in quotes, or None, for each tensor")
    return row.path.parent / entry


def _check(path: Path, name: str, spec: TensorSpec | None) -> None:
    if spec is not None:
        try:
            check_storage(name, spec)
        except Problem:
            # what breaks the contract shows when the row runs; there is nothing to fit until then
            spec = None
    check_binary(path, spec)
