"""What suites of the rotary operators share: which row is which, and how a row is made.

Row n depends on level, seed, budget and n alone, so a shorter suite is the beginning of a longer
one. What a form, a dtype and the like go round by have no common divisors, so that all of them meet
within a number of rows that an operator's module names; but for a row now and then that takes the
whole budget instead. The rest is drawn: kind of sizes, kind of values, views.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.validation.generation import _rotary_values as values
from opferry.validation.generation._draws import Draws
from opferry.validation.generation._levels import LEVELS
from opferry.validation.generation._rotary_sizes import full_sizes
from opferry.validation.generation._row import GeneratedRow
from opferry.validation.generation._views import draw_views

FIRST_FULL_ROW = 40
"""The first row that takes the whole budget: behind what a trial of a few rows takes."""

UNIFORM, NORMAL, BOTH = "uniform", "normal", "both"
DISTRIBUTIONS = (UNIFORM, NORMAL, BOTH)
"""How inputs may be distributed; both: half of the rows each."""

VIEWS_EVERY = 4
"""One row in so many has views."""

DTYPES = {DType.BFLOAT16: "bf16", DType.FLOAT16: "fp16", DType.FLOAT32: "fp32"}
"""The dtypes, and how names of rows say them."""


@dataclass(frozen=True)
class RotarySuite(ABC):
    """What all rows of a suite have in common."""

    level: str
    """One of `LEVELS`."""
    seed: int
    """Other seeds give other cases."""
    largest_bytes: int
    """The most that the inputs of one case take."""
    distribution: str
    """One of `DISTRIBUTIONS`."""

    version: ClassVar[str]
    """Changes whenever the same seed gives another suite."""
    operator: ClassVar[Operator]
    """Whose suite it is."""
    vectors: ClassVar[tuple[str, str]]
    """The names of its first two inputs."""
    full_optional: ClassVar[bool]
    """Whether a row that takes the whole budget has the optional inputs."""

    def rows(self, count: int) -> Iterator[GeneratedRow]:
        """Yield the first rows, each of which satisfies the contract.

        Args:
            count: how many.
        """
        for number in range(count):
            draws = Draws(self.version, self.level, self.seed, number)
            if (number - FIRST_FULL_ROW) % LEVELS[self.level].full_every == 0:
                yield self._full_row(number, draws)
            else:
                yield self.row(number, draws)

    @abstractmethod
    def row(self, number: int, draws: Draws) -> GeneratedRow:
        """Return a row of an ordinary size."""

    def viewed(
        self, layout: Layout, specs: Mapping[str, TensorSpec], words: list[str], draws: Draws
    ) -> Mapping[str, TensorSpec]:
        """Return the inputs, of one row in some as views, and add to the remark how."""
        if draws.below(VIEWS_EVERY):
            return specs
        head_axis = layout.axes.index("N") - len(layout.axes)
        found, view = draw_views(specs, draws, self.largest_bytes, head_axis)
        words += [view] if view else []
        return found

    def _full_row(self, number: int, draws: Draws) -> GeneratedRow:
        dtype = list(DTYPES)[number % len(DTYPES)]
        sizes = full_sizes(dtype.itemsize, self.largest_bytes, optional=self.full_optional)
        words = ["packed tokens", "the whole budget", f"values {values.DEFAULT}"]
        specs = sizes.specs(dtype, self.vectors)
        return self.checked(number, Layout.TND, "half", specs, values.DEFAULT, {}, words, draws)

    def checked(
        self,
        number: int,
        layout: Layout,
        mode: str,
        specs: Mapping[str, TensorSpec],
        family: str,
        ranges: Mapping[str, str],
        words: list[str],
        draws: Draws,
    ) -> GeneratedRow:
        """Return a row whose call satisfies the contract.

        Args:
            number: of the row.
            layout: the order of the axes.
            mode: rotary_mode.
            specs: the inputs.
            family: what kind of values they have.
            ranges: the ranges of them.
            words: the parts of the remark.
            draws: the row's choices.
        """
        attributes = {"rotary_mode": mode, "layout": int(layout)}
        plan = self.operator.check(specs, self.operator.parse_attributes(attributes))
        dtype = DTYPES[specs["cos"].dtype]
        # drawn last, so that a suite of one distribution has the other choices of one of both
        normal = draws.below(2) == 1 if self.distribution == BOTH else self.distribution == NORMAL
        said = (layout.name.lower(), *self.name_words(mode), plan.template.lower(), family)
        return GeneratedRow(
            name=f"{self.operator.name}_{dtype}_{'_'.join(said)}_{len(specs)}in_"
            f"{self.level.lower()}_{number:06d}",
            operator=self.operator,
            attributes=attributes,
            inputs=specs,
            remark="; ".join(words),
            ranges=ranges,
            normal=normal,
        )

    def name_words(self, mode: str) -> tuple[str, ...]:
        """Return what a row's name says between layout and template."""
        return ()
