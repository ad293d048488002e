"""What a check can come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Outcome(Enum):
    """How a check ended."""

    OK = "OK"
    """As the backend needs it."""
    WARNING = "WARNING"
    """The backend starts, but this is worth knowing."""
    FAILED = "FAILED"
    """The backend does not start, or not rightly, before this is mended."""
    UNKNOWN = "UNKNOWN"
    """It could not be checked."""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    group: str
    """The heading below which it stands."""
    name: str
    """What was checked."""
    outcome: Outcome
    """How it ended."""
    found: str
    """What was found."""
    remedy: str = ""
    """What to do, "" where there is nothing to be done."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More of what was found, for --json."""
