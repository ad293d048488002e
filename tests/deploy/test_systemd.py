"""The units of systemd: it takes them, and they are hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendering import DEPLOY
from tests.packaging.project import tomllib

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
units = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)

MOST_EXPOSED = 2.5
"""Of 10, by `systemd-analyze security`; a unit without any hardening has 9.6."""


@pytest.fixture
def analyze() -> str:
    """The program systemd-analyze."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze on this machine")
    return program


@pytest.fixture
def here(tmp_path: Path, unit: Path) -> Path:
    """The unit, its programs replaced by one that this machine has."""
    text = re.sub(r"^(Exec\w+=)(/opt|/usr/local)/\S+", r"\1/bin/true", unit.read_text(), flags=re.M)
    path = tmp_path / unit.name
    path.write_text(text)
    return path


@units
def test_systemd_takes_the_unit(analyze: str, here: Path) -> None:
    """Without a word."""
    done = subprocess.run([analyze, "verify", here], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@units
def test_the_unit_is_hardened(analyze: str, here: Path) -> None:
    """As systemd itself counts it."""
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", here], capture_output=True, text=True
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze cannot look at files: {done.stderr.strip()}")
    assert float(found[1]) <= MOST_EXPOSED


@units
def test_stopping_waits_for_what_runs(unit: Path) -> None:
    """Longer than the server's grace, or than Envoy's drain, and only the front is told."""
    text = unit.read_text()
    stop_s = int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)[0])
    if "envoy" in unit.name:
        (drain_s,) = re.findall(r"^ExecStop=.*drain.sh (\d+)$", text, re.M)
    else:
        options = tomllib.loads((DEPLOY / "k8s" / "base" / "server.toml").read_text())
        drain_s = options["grace_s"]
        assert "KillMode=mixed" in text
    assert stop_s > float(drain_s)
