"""The last faults of devices and ends of workers, by their codes."""

from __future__ import annotations

from collections import deque

from opferry_server.workers.faults import Fault

KEPT_FAULTS = 50
"""How many faults are kept."""


class Faults:
    """The last faults, the newest first."""

    def __init__(self) -> None:
        self._faults: deque[Fault] = deque(maxlen=KEPT_FAULTS)

    def note(self, fault: Fault) -> None:
        """Keep a fault; the oldest goes when there are `KEPT_FAULTS`."""
        self._faults.appendleft(fault)

    def last(self) -> tuple[Fault, ...]:
        """Return what is kept."""
        return tuple(self._faults)
