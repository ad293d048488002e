"""The inputs of rows whose slices must agree with those of other rows.

A sample's slice of an input depends on its seed, its extents and the run's seed alone; what lies
outside all slices depends on the case, so that an operator which looks there is found out. An input
that is not as long as the first output on a sliced axis is shared: it is the same in all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opferry.core.tensors import HostTensor, TensorSpec, raw_bytes, view_array
from opferry.validation.batches import BatchSample, BatchSlice
from opferry.validation.case import Case
from opferry.validation.inputs import generate
from opferry.validation.recipes import Distribution, Recipe


def batch_input(case: Case, batch: BatchSlice, name: str, seed: int) -> HostTensor:
    """Return an input of a case with slices.

    Args:
        case: the case.
        batch: its slices.
        name: the input.
        seed: the run's seed.
    """
    spec, values = case.inputs[name], case.ranges[name]
    normal = case.normal_distribution
    distribution = Distribution.NORMAL if normal else Distribution.UNIFORM
    if not sliced_alike(case, batch, spec.shape):
        return generate(Recipe(spec, values, distribution, seed, "batch", name))
    background = generate(Recipe(spec, values, distribution, seed, case.name, name))
    data = np.frombuffer(bytearray(background.data), np.uint8)
    view = view_array(spec, data.data)
    for sample in batch.samples:
        place = place_of(batch, sample, len(spec.shape))
        shape = view[place].shape
        part = Recipe(
            TensorSpec(spec.dtype, shape), values, distribution, seed, f"batch {sample.seed}", name
        )
        made = generate(part)
        view[place] = view_array(made.spec, made.data)
    return HostTensor(spec, raw_bytes(data))


def sliced_alike(case: Case, batch: BatchSlice, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is as long as the first output on every sliced axis."""
    first = case.inputs[case.operator.outputs[0].like].shape
    return len(shape) == len(first) and all(
        axis < len(first) and shape[axis] == first[axis] for axis in batch.axes
    )


def place_of(batch: BatchSlice, sample: BatchSample, rank: int) -> tuple[Any, ...]:
    """Return the index of a sample's slice in a tensor of a rank."""
    place: list[slice] = [slice(None)] * rank
    for axis, positions in zip(batch.axes, sample.slices, strict=True):
        place[axis] = slice(positions.start, positions.stop, positions.step)
    return tuple(place)
