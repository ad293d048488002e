"""How a package's starts on a device went, when the next makes sense, and what bounds a worker."""

from __future__ import annotations

import time
from dataclasses import dataclass

from opferry_server.workers.running import WorkerStartError

FIRST_RESTART_S = 0.1
"""The pause before a worker that died while it was ready is started again."""

LAST_RESTART_S = 300.0
"""The longest pause, after many starts in a row that failed; it doubles in between."""

QUARANTINE_COUNT = 3
"""So many starts in a row that failed put a package on a device into quarantine: it is still
probed."""


@dataclass(frozen=True)
class Bounds:
    """How long things may take, and how old a worker may become."""

    run_s: float
    """A job that runs longer is ended together with the process."""
    start_s: float
    """How long each start may take."""
    job_count: int
    """After so many jobs a process is replaced."""
    memory_bytes: int
    """A process with more memory of its own is replaced."""


@dataclass
class StartRecord:
    """The starts of one package on one device."""

    failed_count: int = 0
    """How many failed in a row."""
    trouble: str = ""
    """Why the last one failed."""
    last_s: float = FIRST_RESTART_S
    """How long the last one that succeeded took, in seconds."""
    retry_at_s: float = 0.0
    """When the next one makes sense, on the monotonic clock."""

    @property
    def quarantined(self) -> bool:
        """Whether it failed so often that it is only probed."""
        return self.failed_count >= QUARANTINE_COUNT

    @property
    def pause_s(self) -> float:
        """How long to wait before the next start, in seconds."""
        # an exponent without bounds would overflow
        return min(FIRST_RESTART_S * 2.0 ** min(self.failed_count, 30), LAST_RESTART_S)

    def may_start(self) -> bool:
        """Return whether a start makes sense now."""
        return not self.quarantined or time.monotonic() >= self.retry_at_s

    def succeeded(self, duration_s: float) -> None:
        """Note a start that succeeded."""
        self.failed_count, self.trouble, self.last_s = 0, "", duration_s

    def failed(self, error: WorkerStartError) -> None:
        """Note a start that failed."""
        self.failed_count += 1
        self.trouble = str(error)
        self.retry_at_s = time.monotonic() + self.pause_s
