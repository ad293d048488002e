"""Programs of the tests' own, for what needs a process to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection

from tests.support.servers import PYTHONPATH

PROGRAM_S = 120
"""How long one may take."""


def said(*words: str, without: Collection[str] = (), **environment: str) -> list[str]:
    """Return the lines that a program prints; one that hangs is ended, and fails.

    Args:
        words: its module, and its arguments.
        without: the variables of this process's environment that it does not have.
        environment: those that it has besides.
    """
    own = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**own, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
