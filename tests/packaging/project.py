"""What pyproject.toml claims."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.servers import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def project() -> dict[str, Any]:
    """Return the table [project]."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def python_versions() -> list[str]:
    """Return the versions of Python that the classifiers name, for example ["3.10", "3.11"]."""
    prefix = "Programming Language :: Python :: "
    found = (item.removeprefix(prefix) for item in project()["classifiers"] if prefix in item)
    return [version for version in found if "." in version]


def floors(extra: str | None = None) -> dict[str, str]:
    """Return the oldest supported release of each dependency, of those of the base or an extra."""
    lines = project()["dependencies"] if extra is None else _extras()[extra]
    found = {}
    for requirement in map(Requirement, lines):
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                found[requirement.name] = specifier.version
    return found


def tracked_files(*options: str) -> list[str]:
    """Return the paths of all files under version control; skips the test where there is none.

    Args:
        options: options of `git ls-files`, to list others.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of the repository")
    command = ["git", "-C", ROOT, "ls-files", "-z", *options]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    return [name for name in listed.stdout.split("\0") if name]


def _extras() -> dict[str, list[str]]:
    extras: dict[str, list[str]] = project()["optional-dependencies"]
    return extras
