"""What is told of a device that faulted, and of a worker that died."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """A device that faulted, or a worker that died."""

    worker: str
    """The worker, for example "worker-0"."""
    device: str
    """Its device, for example "cpu:0"."""
    package: str
    """The operator package that it served."""
    how: str
    """The reason of the fault, or in words how the process ended."""
    acl_error: str = ""
    """CANN's code, for example "507015"; "" where there is none."""
    stage: str = ""
    """Where it happened, for example "stage_one"; "" if nobody knows."""
    time_s: float = field(default_factory=time.time)
    """When, in seconds since 1970."""
