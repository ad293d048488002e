"""The simulator of CANN's C symbols, as a server's or a test's environment."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.simulator.build import build

_LOCKS = tempfile.TemporaryDirectory(prefix="opferry-locks-")


@functools.cache
def libraries() -> Path:
    """Return the folder of the simulator's libraries, built once; skips where it cannot be."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("the simulator needs cc and make")
    return build()


def environment(faults: str = "", **settings: str) -> dict[str, str]:
    """Return what lets a server find the simulator.

    Args:
        faults: rules of OPFERRY_SIM_FAULTS.
        settings: other variables, without their prefix OPFERRY_SIM_, in lower case.
    """
    found = {"LD_LIBRARY_PATH": str(libraries()), **own_devices()}
    if faults:
        found["OPFERRY_SIM_FAULTS"] = faults
    return found | {f"OPFERRY_SIM_{name.upper()}": value for name, value in settings.items()}


def own_devices() -> dict[str, str]:
    """Return what lets servers run side by side, each as if it had a host of its own."""
    return {"OPFERRY_DEVICE__LOCK_FOLDER": tempfile.mkdtemp(dir=_LOCKS.name)}


def package(name: str) -> str:
    """Return the folder of one of the simulator's custom operator packages."""
    return str(libraries() / "packages" / name)
