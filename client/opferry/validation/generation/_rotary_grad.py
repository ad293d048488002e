"""Suites for ApplyRotaryPosEmbGrad by the ecosystem standard's rules for generated cases.

Any 78 rows in a row have every form of `GRAD_FORMS` in every dtype with and without query and key.
"""

from __future__ import annotations

from opferry.operators import OPERATORS
from opferry.validation.generation import _rotary_values as values
from opferry.validation.generation._draws import Draws
from opferry.validation.generation._levels import LEVELS
from opferry.validation.generation._rotary_sizes import GRAD_FORMS, KINDS, draw_sizes
from opferry.validation.generation._rotary_suite import DTYPES, RotarySuite
from opferry.validation.generation._row import GeneratedRow


class GradSuite(RotarySuite):
    """Suites of the backward."""

    version = "opferry-cases-1"
    operator = OPERATORS["ApplyRotaryPosEmbGrad"]
    vectors = ("grad_query_embed", "grad_key_embed")
    full_optional = True

    def row(self, number: int, draws: Draws) -> GeneratedRow:
        """Return a row of an ordinary size."""
        # 13 forms, 3 dtypes and 2: no two have a common divisor, so that all meet
        form = GRAD_FORMS[number % len(GRAD_FORMS)]
        dtype = list(DTYPES)[number % len(DTYPES)]
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
        words = [form.words, kind, f"values {family}"]
        specs = self.viewed(form.layout, sizes.specs(dtype, self.vectors), words, draws)
        terms = sizes.summed_terms
        ranges = values.draw_ranges(
            family, dtype, draws, self.vectors, optional=optional, terms=terms
        )
        return self.checked(number, form.layout, "half", specs, family, ranges, words, draws)
