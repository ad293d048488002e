"""The elements that are furthest off, from one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.validation._scan import Block

Array = NDArray[Any]


class WorstElements:
    """Keeps the positions of the worst elements, whatever the tensors' size.

    Mismatches come before all finite pairs, and of two that are equally bad the earlier one.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._mismatches: list[int] = []
        # (severity, position), the worst first
        self._pairs: list[tuple[float, int]] = []

    def equal(self, values: Array, magnitudes: Array, finite_count: int) -> None:
        """Nothing is off in a block without errors."""

    def differing(self, block: Block) -> None:
        """Take from any other block what is worse than what is kept."""
        room = self._count - len(self._mismatches)
        if room <= 0:
            return
        if block.mismatch.any():
            places = np.flatnonzero(block.mismatch)[:room]
            self._mismatches += (places + block.first).tolist()
        # an element of a later block must be worse: among equals the earlier one stays
        least = self._pairs[-1][0] if len(self._pairs) == self._count else -np.inf
        places = _largest(block.severity, least, self._count)
        if not places.size:
            return
        severities = block.severity[places].tolist()
        self._pairs += zip(severities, (places + block.first).tolist(), strict=True)
        self._pairs.sort(key=lambda pair: (-pair[0], pair[1]))
        del self._pairs[self._count :]

    def positions(self) -> list[int]:
        """Return the positions of the worst elements, the worst first."""
        pairs = [position for _, position in self._pairs]
        return (self._mismatches + pairs)[: self._count]


def _largest(values: Array, least: float, count: int) -> Array:
    """Return the places of the *count* largest values over *least*, of equal ones the first."""
    places = np.flatnonzero(values > least)
    if places.size <= count:
        return places
    found = values[places]
    last = np.partition(found, found.size - count)[found.size - count]
    above = places[found > last]
    return np.concatenate([above, places[found == last][: count - above.size]])
