"""How many rows a suite has, and how large its cases are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opferry.core.limits import KIB, MIB
from opferry.validation.generation._draws import Draws

LEAST_BUDGET_BYTES = 256 * KIB
"""The smallest budget: the widest case with one token and two heads, and gaps in its storage."""

_PARTS = 256


@dataclass(frozen=True)
class SizeClass:
    """Cases of about one size."""

    share: int
    """How many of 256 cases."""
    low_bytes: int
    """The least that the inputs are to take."""
    high_bytes: int
    """The most that the inputs are to take, before an axis is rounded up to a power of two."""


@dataclass(frozen=True)
class Level:
    """One of the ecosystem standard's levels."""

    row_count: int
    """The rows of a suite."""
    largest_bytes: int
    """The most that the inputs of one case take, gaps in their storage included."""
    full_every: int
    """One case in so many takes exactly that much."""
    classes: tuple[SizeClass, ...]
    """The sizes of the others."""

    def target_bytes(self, draws: Draws, largest_bytes: int) -> int:
        """Return what the inputs of a case are to take.

        Args:
            draws: the row's choices.
            largest_bytes: the budget.
        """
        part = draws.below(_PARTS)
        for size in self.classes:
            part -= size.share
            if part < 0:
                break
        high = min(size.high_bytes, largest_bytes)
        return draws.between(min(size.low_bytes, high), high)


LEVELS: Mapping[str, Level] = {
    "L0": Level(
        5_000,
        4 * MIB,
        1_000,
        (
            SizeClass(160, 4 * KIB, 32 * KIB),
            SizeClass(80, 32 * KIB, 256 * KIB),
            SizeClass(16, 256 * KIB, 2 * MIB),
        ),
    ),
    # more than half of the cases take at least 1 MiB
    "L1": Level(
        10_000,
        128 * MIB,
        2_500,
        (
            SizeClass(88, 4 * KIB, 256 * KIB),
            SizeClass(160, 1 * MIB, 5 * MIB // 4),
            SizeClass(7, 2 * MIB, 8 * MIB),
            SizeClass(1, 16 * MIB, 64 * MIB),
        ),
    ),
    "L2": Level(
        30_000,
        256 * MIB,
        7_500,
        (
            SizeClass(96, 4 * KIB, 256 * KIB),
            SizeClass(138, 256 * KIB, 1 * MIB),
            SizeClass(20, 1 * MIB, 8 * MIB),
            SizeClass(2, 16 * MIB, 128 * MIB),
        ),
    ),
}
"""The levels by name."""
