"""What a generated input is made of: a recipe, which stands for its bits."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np

from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, check_storage
from opferry.validation._grid import Grid, grid_between
from opferry.validation.ranges import ValueRange
from opferry.validation.rounding import FORMATS, round_value

GENERATOR_VERSION = "opferry-inputs-2"
"""Changes whenever the same recipe gives other bits."""

PLACES_COUNTER = 2**128
"""Philox's counter for the places of the values that must occur, far above any element's."""


class Distribution(str, Enum):
    """How values lie between their bounds; the value is its name everywhere, as in TTK."""

    UNIFORM = "uniform"
    """Every part of the interval alike."""
    NORMAL = "normal"
    """About the middle, the standard deviation an eighth of the width, none beyond the bounds."""


@dataclass(frozen=True)
class Recipe:
    """Everything that the bits of an input depend on."""

    spec: TensorSpec
    """The tensor; the whole storage is filled."""
    values: ValueRange = field(default_factory=ValueRange)
    """The interval, and the values that occur for certain in the view."""
    distribution: Distribution = Distribution.UNIFORM
    """How values lie in the interval."""
    seed: int = 0
    """Any integer."""
    case_name: str = ""
    """The case's name; other names give other data."""
    input_name: str = ""
    """The operator's parameter; likewise."""
    version: str = GENERATOR_VERSION
    """The generator that the recipe is for."""

    def __post_init__(self) -> None:
        """Refuse what this generator cannot make.

        Raises:
            Problem: TENSOR_MALFORMED for a tensor that is not well formed, RECIPE_MISMATCH for
                another version.
        """
        if self.version != GENERATOR_VERSION:
            raise Problem(
                Reason.RECIPE_MISMATCH,
                f"{self.input_name} has a recipe for the generator {self.version[:40]}, and this "
                f"is {GENERATOR_VERSION}: install the same opferry on both sides, or send the data",
                argument=self.input_name,
                given=self.version[:40],
                allowed=GENERATOR_VERSION,
            )
        check_storage(self.input_name, self.spec)

    @cached_property
    def key(self) -> int:
        """Philox's key, 128 bits."""
        text = json.dumps([self.version, int(self.seed), self.case_name, self.input_name])
        return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:16], "little")

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The bounds as the dtype holds them: rounded to nearest, infinite or NaN."""
        dtype = self.spec.dtype
        return round_value(self.values.low, dtype), round_value(self.values.high, dtype)

    @cached_property
    def constant(self) -> float | None:
        """The value of every element that is not forced; None if values are drawn."""
        if self.values.is_nan:
            return math.nan
        low, high = self.bounds
        return low if low == high else None

    @cached_property
    def finite_bounds(self) -> tuple[float, float]:
        """The bounds between which values are drawn; for an infinite one the largest finite."""
        largest = FORMATS[self.spec.dtype].largest
        low, high = self.bounds
        return max(low, -largest), min(high, largest)

    @cached_property
    def grid(self) -> Grid:
        """Where values are drawn; only of a recipe that is no constant."""
        return grid_between(*self.finite_bounds, self.spec.dtype)

    @cached_property
    def forced(self) -> Mapping[int, float]:
        """The values that must occur, each with its place in the storage.

        The first ones, if the view has fewer places than there are values.
        """
        values = [round_value(value, self.spec.dtype) for value in self.values.forced]
        if self.constant is None:
            values += [bound for bound in self.bounds if math.isinf(bound)]
        axes = [
            (extent, step)
            for extent, step in zip(self.spec.shape, self.spec.full_strides, strict=True)
            if step
        ]
        total = math.prod(extent for extent, _ in axes)
        words = np.random.Philox(key=self.key, counter=PLACES_COUNTER)
        places: dict[int, float] = {}
        for value in values[:total]:
            start = int(words.random_raw()) % total
            for element in range(start, start + total):
                place = self._place(element % total, axes)
                if place not in places:
                    places[place] = value
                    break
        return places

    def _place(self, element: int, axes: list[tuple[int, int]]) -> int:
        """Return where in the storage an element of the view lies."""
        place = self.spec.storage_offset
        for extent, step in reversed(axes):
            element, position = divmod(element, extent)
            place += position * step
        return place
