"""Batch consistency: parts of one computation, whose slices must have the same bytes.

Three columns of TTK's say it, each with one entry for each tensor, of which one is not None:

    batch_axis        ((0,),)               the axes that are sliced
    batch_slice_info  ((((0,5,1),),),)      for each axis (start, stop, step), one for each sample
    batch_seed        (((100,),),)          for each axis a seed, one for each sample

Samples with one seed, in whatever row, have the same inputs, and so the same outputs. Shorter forms
are published too and are read: a seed alone stands for all samples, a slice alone for a single one,
and an axis may stand in brackets.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSample:
    """One slice of a row."""

    seed: int
    """What makes its inputs; samples with the same one must have the same bytes."""
    slices: tuple[range, ...]
    """The positions on each of the axes of its `BatchSlice`; not empty, in rising order."""

    @property
    def extents(self) -> tuple[int, ...]:
        """The extent of each axis of the slice: samples compare only where they are equal."""
        return tuple(len(positions) for positions in self.slices)


@dataclass(frozen=True)
class BatchSlice:
    """The slices of a row that are compared with those of other rows."""

    tensor: str
    """The input in whose place the row's entries stand."""
    axes: tuple[int, ...]
    """The axes that are sliced; each once."""
    samples: tuple[BatchSample, ...]
    """The slices; at least one."""
