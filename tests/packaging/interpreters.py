"""The Python interpreters of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.project import python_versions

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version that runs the tests."""


@functools.cache
def find_interpreter(version: str) -> Path | None:
    """Return an interpreter of a version such as "3.12" that can make environments, or None."""
    return next((path for path in _candidates(version) if _works(path, version)), None)


def find_shared_interpreter(preferred: str, user: int) -> Path | None:
    """Return an interpreter with pip that an unprivileged user can run too, or None.

    Args:
        preferred: the version that is taken if there is one; else any supported one.
        user: the user's number.
    """
    versions = [preferred, RUNNING, *python_versions()]
    candidates = (path for version in versions for path in _candidates(version))
    return next((path for path in candidates if _works(path, module="pip", user=user)), None)


def _candidates(version: str) -> Iterator[Path]:
    if version == RUNNING:
        yield Path(sys.executable)
    name = f"python{version}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if found := shutil.which(name, path=folder):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)


def _works(
    path: Path, version: str | None = None, module: str = "venv", user: int | None = None
) -> bool:
    """Return whether an interpreter starts: what is on the path may be a shim of an absent one."""
    program = f"import sys, {module}; print('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run(
            [path, "-c", program], capture_output=True, text=True, timeout=60, user=user, cwd="/"
        )
    except OSError:
        return False
    return said.returncode == 0 and version in (None, said.stdout.strip())
