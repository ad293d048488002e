"""Runs the real command as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ELSEWHERE = """
import sys
from pathlib import Path
from opferry_server.doctor.command import main
raise SystemExit(main(sys.argv[2:], Path(sys.argv[1])))
"""
"""The command with another folder for "/", which no option of it gives."""


class Report(NamedTuple):
    """What doctor --json said."""

    status: int
    """The exit status."""
    fields: dict[str, Any]
    """The whole."""

    def __getitem__(self, name: Any) -> Any:
        """Return the check of a name; there is one."""
        (found,) = [check for check in self.fields["checks"] if check["name"] == name]
        return found

    @property
    def failed(self) -> list[str]:
        """The names of what failed."""
        checks = self.fields["checks"]
        return [check["name"] for check in checks if check["outcome"] == "FAILED"]

    def of_group(self, group: str) -> list[dict[str, Any]]:
        """The checks below one heading."""
        return [check for check in self.fields["checks"] if check["group"] == group]


def run(
    *words: str, environment: Mapping[str, str] | None = None, root: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run doctor; variables of CANN's are only those that are given."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ASCEND", "LD_LIBRARY", "OPFERRY_"))
    }
    program = ["-m", "opferry_server", "doctor"] if root is None else ["-c", ELSEWHERE, str(root)]
    return subprocess.run(
        [sys.executable, *program, *words],
        env=inherited | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=100,
    )


def report(
    *words: str, environment: Mapping[str, str] | None = None, root: Path | None = None
) -> Report:
    """Run doctor --json and return what it said."""
    done = run(*words, "--json", environment=environment, root=root)
    assert done.stderr == "", done.stderr
    return Report(done.returncode, json.loads(done.stdout))
