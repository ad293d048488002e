"""Values of metrics' labels, so few that no caller can fill the memory of whoever keeps them."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"
"""What all values are called for which there is no room."""

TENANT_COUNT = 100
"""The most tenants that metrics tell apart."""

CODE_COUNT = 64
"""The most error codes that metrics tell apart."""


class Bounded:
    """The values that a label may have: those known from the start, and the first others."""

    def __init__(self, count: int, known: Iterable[str] = ()) -> None:
        """Allow *known* values, and others until there are *count* altogether."""
        self._count = count
        self._values = set(known)

    def __call__(self, value: str) -> str:
        """Return a value as the label has it: itself, or `OTHER`."""
        if value in self._values:
            return value
        if len(self._values) >= self._count:
            return OTHER
        self._values.add(value)
        return value
