"""How long a run is expected to take, from the runs before it."""

from __future__ import annotations

from collections import OrderedDict

FIRST_GUESS_S = 0.1
"""What a run is taken to last before the first one has been seen, in seconds."""

KNOWN_COUNT = 1024
"""How many kinds of runs are remembered, those seen last."""

NEWEST = 0.25
"""How much the newest run counts beside all before it."""


class Estimates:
    """Seconds by kind of run: operator, package, and size to a power of two."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: OrderedDict[tuple[str, str, int], float] = OrderedDict()
        self._any_s = FIRST_GUESS_S

    @property
    def any_s(self) -> float:
        """What a run takes, of whatever kind, in seconds."""
        return self._any_s

    def expected_s(self, operator: str, package: str, size_bytes: int) -> float:
        """Return how long a run is expected to take, in seconds."""
        return self._known.get((operator, package, size_bytes.bit_length()), self._any_s)

    def learn(self, operator: str, package: str, size_bytes: int, seconds: float) -> None:
        """Note how long a run took."""
        kind = (operator, package, size_bytes.bit_length())
        before_s = self._known.get(kind, seconds)
        self._known[kind] = before_s + NEWEST * (seconds - before_s)
        self._known.move_to_end(kind)
        if len(self._known) > KNOWN_COUNT:
            self._known.popitem(last=False)
        self._any_s += NEWEST * (seconds - self._any_s)
