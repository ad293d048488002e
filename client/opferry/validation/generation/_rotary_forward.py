"""Suites for ApplyRotaryPosEmb by the ecosystem standard's rules for generated cases.

Any 342 rows in a row have every form of `FORWARD_FORMS` in every dtype and mode, with all of D
rotated and with a part of it, where D has one.
"""

from __future__ import annotations

from opferry.core.layouts import RotaryMode
from opferry.operators import OPERATORS
from opferry.operators._rotary_forward_contract import WIDTH_MULTIPLES
from opferry.validation.generation import _rotary_values as values
from opferry.validation.generation._draws import Draws
from opferry.validation.generation._levels import LEVELS
from opferry.validation.generation._rotary_sizes import (
    FORWARD_FORMS,
    KINDS,
    draw_rotated,
    draw_sizes,
)
from opferry.validation.generation._rotary_suite import DTYPES, RotarySuite
from opferry.validation.generation._row import GeneratedRow

MODES = tuple(RotaryMode)


class ForwardSuite(RotarySuite):
    """Suites of the forward."""

    version = "opferry-forward-cases-1"
    operator = OPERATORS["ApplyRotaryPosEmb"]
    vectors = ("query", "key")
    full_optional = False

    def row(self, number: int, draws: Draws) -> GeneratedRow:
        """Return a row of an ordinary size."""
        # 19 forms, 9 pairs of dtype and mode, and 2: no two have a common divisor
        form = FORWARD_FORMS[number % len(FORWARD_FORMS)]
        dtype = list(DTYPES)[number % len(DTYPES)]
        mode = MODES[number // len(DTYPES) % len(MODES)]
        kind, family = draws.one_of(KINDS), draws.one_of(values.FAMILIES)
        multiple = WIDTH_MULTIPLES[mode]
        sizes = draw_sizes(
            form,
            kind,
            draws,
            optional=False,
            itemsize=dtype.itemsize,
            target_bytes=LEVELS[self.level].target_bytes(draws, self.largest_bytes),
            largest_bytes=self.largest_bytes,
            multiple=multiple,
        )
        words = [form.words, mode.value, kind, f"values {family}"]
        if number % 2:
            sizes = draw_rotated(sizes, draws, multiple)
            words += [f"{sizes.rotated} of {sizes.width} rotated"] if sizes.rotated else []
        specs = self.viewed(form.layout, sizes.specs(dtype, self.vectors), words, draws)
        ranges = values.draw_ranges(family, dtype, draws, self.vectors)
        return self.checked(number, form.layout, mode.value, specs, family, ranges, words, draws)

    def name_words(self, mode: str) -> tuple[str, ...]:
        """Return the mode."""
        return (mode,)
