"""The columns of batch consistency, in the forms that TTK's documents and files have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.validation._row import Row
from opferry.validation.batches import BatchSample, BatchSlice
from opferry.validation.literals import shown
from opferry.validation.problems import CellError

BATCH_COLUMNS = ("batch_seed", "batch_axis", "batch_slice_info")
"""The three columns, which go together."""


def batch_slice(
    row: Row, operator: Operator, inputs: Mapping[str, TensorSpec]
) -> BatchSlice | None:
    """Return what a row's three columns say; None where they ask for nothing.

    A seed alone is no relation, as in TTK, where it only makes inputs repeatable, as they are here
    in any case.

    Raises:
        CaseFileError: for the first column that is missing or not well formed.
    """
    seed_column, axis_column, slice_column = BATCH_COLUMNS
    given = [column for column in BATCH_COLUMNS if not row.asks_nothing(column)]
    if given in ([], [seed_column]):
        return None
    for column in BATCH_COLUMNS:
        if column not in given:
            with row.column(column):
                raise CellError(f"is empty, and {given[-1]} is not: fill in all three or neither")
    with row.column(slice_column):
        value = row.literal(slice_column)
        position = _active_position(value)
        name = operator.inputs[position].name if position < len(operator.inputs) else ""
        if name not in inputs:
            raise CellError(f"has slices for tensor {position}, which is no input of this row")
    shape = inputs[name].shape
    with row.column(axis_column):
        axes = _axes(_entry_at(row.literal(axis_column), position), shape)
    with row.column(slice_column):
        slices = _slices(value[position], axes, shape)
    with row.column(seed_column):
        entry = _entry_at(row.literal(seed_column), position)
        seeds = _seeds(entry, axes, len(slices))
    samples = map(BatchSample, seeds, slices)
    return BatchSlice(name, axes, tuple(samples))


def _active_position(value: Any) -> int:
    """Return the position of the one tensor for which batch_slice_info has slices.

    Raises:
        CellError: if it has none, or more than one.
    """
    if not isinstance(value, tuple):
        raise CellError(f"is {shown(value)}; give a tuple with one entry for each tensor")
    found = [position for position, entry in enumerate(value) if entry is not None]
    if len(found) != 1:
        raise CellError(
            f"has slices for {len(found)} tensors; give them for one and None for the others"
        )
    return found[0]


def _entry_at(value: Any, position: int) -> Any:
    """Return the entry of a batch column for the tensor that has slices.

    Raises:
        CellError: if there is none.
    """
    if not isinstance(value, tuple):
        raise CellError(f"is {shown(value)}; give a tuple with one entry for each tensor")
    if position >= len(value) or value[position] is None:
        raise CellError(f"has no entry for tensor {position}, which batch_slice_info slices")
    return value[position]


def _axes(entry: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of the sliced tensor, from its entry in batch_axis.

    Raises:
        CellError: for anything but axes of the shape, each once.
    """
    given = entry if isinstance(entry, tuple) else (entry,)
    axes = [axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis for axis in given]
    for axis in axes:
        if type(axis) is not int or not 0 <= axis < len(shape):
            raise CellError(
                f"has the axis {shown(axis)}; the tensor's shape {shown(tuple(shape))} has axes "
                f"0 to {len(shape) - 1}"
            )
    if not axes or len(set(axes)) != len(axes):
        raise CellError(f"has the axes {shown(tuple(axes))}; name one or more, each once")
    return tuple(axes)


def _slices(entry: Any, axes: Sequence[int], shape: Sequence[int]) -> list[tuple[range, ...]]:
    """Return the positions of each sample on each axis, from the entry in batch_slice_info.

    Raises:
        CellError: for anything but as many slices for each axis, each inside the shape.
    """
    groups = _for_each_axis(entry, axes)
    slices = [
        [_positions(part, shape[axis]) for part in (group if _is_nested(group) else (group,))]
        for group, axis in zip(groups, axes, strict=True)
    ]
    if len({len(group) for group in slices}) != 1:
        raise CellError("has another number of slices for one axis than for another")
    return list(zip(*slices, strict=True))


def _seeds(entry: Any, axes: Sequence[int], count: int) -> list[int]:
    """Return the seed of each sample, from the entry in batch_seed.

    Args:
        entry: of the sliced tensor.
        axes: what `_axes` returned.
        count: the number of samples.

    Raises:
        CellError: for anything but one integer for each sample, the same for each axis.
    """
    if type(entry) is int:
        return [entry] * count
    groups = [
        (group,) * count if type(group) is int else group for group in _for_each_axis(entry, axes)
    ]
    for group in groups:
        if not (
            isinstance(group, tuple)
            and len(group) == count
            and all(type(seed) is int for seed in group)
        ):
            raise CellError(f"has {shown(group)}; give {count} integers, one for each slice")
        if group != groups[0]:
            raise CellError("has other seeds for one axis than for another")
    return list(groups[0])


def _for_each_axis(entry: Any, axes: Sequence[int]) -> tuple[Any, ...]:
    if not isinstance(entry, tuple) or len(entry) != len(axes):
        raise CellError(f"has {shown(entry)}; give one entry for each of the axes {list(axes)}")
    return entry


def _is_nested(group: Any) -> bool:
    return isinstance(group, tuple) and bool(group) and isinstance(group[0], tuple)


def _positions(part: Any, extent: int) -> range:
    if not (
        isinstance(part, tuple) and len(part) == 3 and all(type(number) is int for number in part)
    ):
        raise CellError(f"has {shown(part)}; a slice is (start, stop, step) in integers")
    start, stop, step = part
    if not (0 <= start < stop <= extent and step > 0):
        raise CellError(
            f"has the slice {shown(part)}; give 0 <= start < stop <= {extent}, the axis's extent, "
            "and a step above 0"
        )
    return range(start, stop, step)
