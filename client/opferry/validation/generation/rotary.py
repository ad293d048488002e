"""Suites for ApplyRotaryPosEmbGrad by the ecosystem standard's rules for generated cases.

Row n depends on level, seed, budget and n alone, so a shorter suite is the beginning of a longer
one. Any 78 rows in a row have every form of `FORMS` in every dtype with and without query and key,
but for a row now and then that takes the whole budget instead. The rest is drawn: kind of sizes,
kind of values, views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS
from opferry.validation.generation import _rotary_values as values
from opferry.validation.generation._draws import Draws
from opferry.validation.generation._levels import LEVELS
from opferry.validation.generation._rotary_sizes import FORMS, KINDS, draw_sizes, full_sizes
from opferry.validation.generation._row import GeneratedRow
from opferry.validation.generation._views import draw_views

SUITE_VERSION = "opferry-cases-1"
"""Changes whenever the same seed gives another suite."""

FIRST_FULL_ROW = 40
"""The first row that takes the whole budget: behind what a trial of a few rows takes."""

UNIFORM, NORMAL, BOTH = "uniform", "normal", "both"
DISTRIBUTIONS = (UNIFORM, NORMAL, BOTH)
"""How inputs may be distributed; both: half of the rows each."""

VIEWS_EVERY = 4
"""One row in so many has views."""

_OPERATOR = OPERATORS["ApplyRotaryPosEmbGrad"]
_DTYPES = {DType.BFLOAT16: "bf16", DType.FLOAT16: "fp16", DType.FLOAT32: "fp32"}


@dataclass(frozen=True)
class RotarySuite:
    """What all rows of a suite have in common."""

    level: str
    """One of `LEVELS`."""
    seed: int
    """Other seeds give other cases."""
    largest_bytes: int
    """The most that the inputs of one case take."""
    distribution: str
    """One of `DISTRIBUTIONS`."""

    def rows(self, count: int) -> Iterator[GeneratedRow]:
        """Yield the first rows, each of which satisfies the contract.

        Args:
            count: how many.
        """
        for number in range(count):
            draws = Draws(SUITE_VERSION, self.level, self.seed, number)
            if (number - FIRST_FULL_ROW) % LEVELS[self.level].full_every == 0:
                yield self._full_row(number, draws)
            else:
                yield self._row(number, draws)

    def _row(self, number: int, draws: Draws) -> GeneratedRow:
        # 13 forms, 3 dtypes and 2: no two have a common divisor, so that all meet
        form = FORMS[number % len(FORMS)]
        dtype = list(_DTYPES)[number % len(_DTYPES)]
        optional = number % 2 == 0
        kind, family = draws.one_of(KINDS), draws.one_of(values.FAMILIES)
        sizes = draw_sizes(
            form,
            kind,
            draws,
            optional=optional,
            itemsize=dtype.itemsize,
            target_bytes=LEVELS[self.level].target_bytes(draws, self.largest_bytes),
            largest_bytes=self.largest_bytes,
        )
        specs, words = sizes.specs(dtype), [form.words, kind, f"values {family}"]
        if draws.below(VIEWS_EVERY) == 0:
            specs, view = draw_views(specs, draws, self.largest_bytes)
            words += [view] if view else []
        ranges = values.draw_ranges(
            family, dtype, draws, optional=optional, terms=sizes.summed_terms
        )
        return self._checked(number, form.layout, specs, family, ranges, words, draws)

    def _full_row(self, number: int, draws: Draws) -> GeneratedRow:
        dtype = list(_DTYPES)[number % len(_DTYPES)]
        specs = full_sizes(dtype.itemsize, self.largest_bytes).specs(dtype)
        words = ["packed tokens", "the whole budget", f"values {values.DEFAULT}"]
        return self._checked(number, Layout.TND, specs, values.DEFAULT, {}, words, draws)

    def _checked(
        self,
        number: int,
        layout: Layout,
        specs: Mapping[str, TensorSpec],
        family: str,
        ranges: Mapping[str, str],
        words: list[str],
        draws: Draws,
    ) -> GeneratedRow:
        attributes = {"rotary_mode": "half", "layout": int(layout)}
        plan = _OPERATOR.check(specs, _OPERATOR.parse_attributes(attributes))
        dtype = _DTYPES[specs["cos"].dtype]
        # drawn last, so that a suite of one distribution has the other choices of one of both
        normal = draws.below(2) == 1 if self.distribution == BOTH else self.distribution == NORMAL
        return GeneratedRow(
            name=f"{_OPERATOR.name}_{dtype}_{layout.name.lower()}_{plan.template.lower()}_{family}_"
            f"{len(specs)}in_{self.level.lower()}_{number:06d}",
            operator=_OPERATOR,
            attributes=attributes,
            inputs=specs,
            remark="; ".join(words),
            ranges=ranges,
            normal=normal,
        )
