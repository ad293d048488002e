"""Ends a stream on which nothing comes for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PERIOD_S = 0.5
"""How often the clock is looked at, at most."""


class Watchdog:
    """Watches a stream from a thread of its own, until it is stopped."""

    def __init__(self, silence_s: float, end: Callable[[], object]) -> None:
        """Call *end* once nothing has been heard for *silence_s* seconds."""
        self._silence_s = silence_s
        self._end = end
        self._heard_s: float | None = time.monotonic()
        self._stopped = threading.Event()
        self.barked = False
        """Whether it has ended the stream."""
        threading.Thread(target=self._watch, name="opferry-watchdog", daemon=True).start()

    def heard(self) -> None:
        """Note that something has come."""
        self._heard_s = time.monotonic()

    def pause(self) -> None:
        """Look away, until something is heard again."""
        self._heard_s = None

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(PERIOD_S, self._silence_s / 4)):
            heard_s = self._heard_s
            if heard_s is not None and time.monotonic() - heard_s > self._silence_s:
                self.barked = True
                self._end()
                return
