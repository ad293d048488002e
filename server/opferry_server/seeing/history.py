"""How much a server had to do in each of the last seconds."""

from __future__ import annotations

from collections import deque

from opferry_server.served import Served

KEPT_S = 120
"""How many seconds are kept."""


class History:
    """Counts of the last seconds; a watcher of requests."""

    def __init__(self) -> None:
        self._now = [0, 0]
        self._seconds: deque[tuple[int, int, int]] = deque([(0, 0, 0)] * KEPT_S, KEPT_S)
        self.total_count = 0
        """The requests that have ended since the start."""
        self.failed_count = 0
        """Those of them that did not end well."""

    def begun(self, served: Served) -> None:
        """Do nothing: what has begun is counted when it ends."""

    def ended(self, served: Served) -> None:
        """Count a request; one that asks for no operator is none of the server's work."""
        if not served.operator:
            return
        failed = served.outcome != "OK"
        self._now[0] += 1
        self._now[1] += failed
        self.total_count += 1
        self.failed_count += failed

    def tick(self, running_count: int) -> None:
        """Begin another second, at whose begin so many requests run."""
        self._seconds.append((self._now[0], self._now[1], running_count))
        self._now = [0, 0]

    def seconds(self) -> list[tuple[int, int, int]]:
        """Return of each second, the oldest first: requests ended, failed, and running then."""
        return list(self._seconds)
