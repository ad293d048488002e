"""What the environment says to a client."""

from __future__ import annotations

import os

TARGET_VARIABLE = "OPFERRY_TARGET"
"""The variable that holds the server's address where none is given."""


def target_from_environment() -> str | None:
    """Return the server's address from OPFERRY_TARGET, or None."""
    return os.environ.get(TARGET_VARIABLE) or None
