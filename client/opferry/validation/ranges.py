"""The range from which an input's values are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from opferry.validation.literals import is_number, shown
from opferry.validation.problems import CellError

DEFAULT_LOW = -2.0
"""TTK's lower bound where a row names none."""

DEFAULT_HIGH = 2.0
"""TTK's upper bound where a row names none."""


@dataclass(frozen=True, eq=False)
class ValueRange:
    """A closed interval and the values that occur for certain.

    A finite bound that the tensor's dtype rounds to infinity counts as that infinity. Ranges are
    equal if their figures are, where NaN equals NaN and 0.0 is not -0.0: then they draw the same.
    """

    low: float = DEFAULT_LOW
    """The least value. -inf: down to the dtype's lowest finite value, and -inf occurs."""
    high: float = DEFAULT_HIGH
    """The greatest value. inf: up to the dtype's largest finite value, and inf occurs."""
    forced: tuple[float, ...] = ()
    """Values that each occur at least once, as far as the tensor has elements."""

    def __post_init__(self) -> None:
        """Refuse reversed bounds.

        Raises:
            CellError: if low is greater than high.
        """
        if self.low > self.high:
            raise CellError(
                f"has the bounds ({self.low:g}, {self.high:g}); the lower bound comes first, and "
                f"None means {DEFAULT_LOW:g} and {DEFAULT_HIGH:g}"
            )

    def __eq__(self, other: object) -> bool:
        return self._figures == other._figures if isinstance(other, ValueRange) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._figures)

    @property
    def _figures(self) -> tuple[str, ...]:
        return tuple(float(value).hex() for value in (self.low, self.high, *self.forced))

    @property
    def is_nan(self) -> bool:
        """Whether every element is NaN but those that hold a forced value: a bound is NaN."""
        return math.isnan(self.low) or math.isnan(self.high)

    @classmethod
    def parse(cls, entry: Any) -> ValueRange:
        """Return the range of one tensor's entry in input_data_ranges.

        Args:
            entry: None, or (low, high) with None for a default, or (low, high, value, ...); or a
                single inf, -inf or nan, (inf,), which stands for both bounds.

        Raises:
            CellError: for anything else, and for reversed bounds.
        """
        if entry in (None, (), (None, None)):
            return cls()
        if isinstance(entry, tuple) and len(entry) == 1 and _is_special(entry[0]):
            return cls(entry[0], entry[0])
        if not isinstance(entry, tuple) or len(entry) < 2:
            raise CellError(f"has the entry {shown(entry)}; a range is (low, high) or None")
        bounds = [
            default if bound is None else bound
            for bound, default in zip(entry[:2], (DEFAULT_LOW, DEFAULT_HIGH), strict=True)
        ]
        for value in (*bounds, *entry[2:]):
            if not is_number(value):
                raise CellError(f"has {shown(value)} in the range {shown(entry)}; give numbers")
        try:
            low, high, *forced = (float(value) for value in (*bounds, *entry[2:]))
        except OverflowError:
            raise CellError(f"has an integer too large in {shown(entry)}; write inf") from None
        return cls(low, high, tuple(forced))


def _is_special(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
