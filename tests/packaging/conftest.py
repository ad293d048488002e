"""The wheel, built once, and environments with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import Environments, run_checked
from tests.support.servers import ROOT


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Environments with the wheel of this checkout; kept if OPFERRY_TEST_CACHE names a folder."""
    built = tmp_path_factory.mktemp("wheel")
    run_checked([sys.executable, "-m", "build", "--wheel", "--outdir", built, ROOT])
    (wheel,) = built.glob("*.whl")
    kept = os.environ.get("OPFERRY_TEST_CACHE")
    folder = Path(kept).resolve() if kept else tmp_path_factory.mktemp("environments")
    return Environments(folder, wheel)
