"""The benchmarks run to their end, at the smallest settings; what they measure does not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import ROOT
from tests.support.shaped_link import shaped_link

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def run(folder: Path, name: str, *words: str) -> Any:
    """Run a benchmark and return the figures that it writes."""
    path = folder / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_a_suite_beside_a_plain_loop(tmp_path: Path) -> None:
    """Both judge the sample, and the ratio is that of their rates."""
    found = run(tmp_path, "validation", "--rows", "40", "--sample", "20", "--loop")
    assert found["rows"] == 20
    rates = found["cases_per_second"], found["loop_cases_per_second"]
    assert found["ratio_to_loop"] == pytest.approx(rates[0] / rates[1])


def test_many_calls(tmp_path: Path) -> None:
    """Every way of making small and large calls has its figure."""
    found = run(tmp_path, "many", "--calls", "20", "--large-mib", "2", "--turns", "1")
    assert len(found) == 5
    assert min(found.values()) > 0


def test_scale(tmp_path: Path) -> None:
    """Every block, and every load with every number of workers, has its row."""
    small = ("--seconds", "0.2", "--turns", "1", "--calls", "60")
    found = run(tmp_path, "scale", "--parts", "steady", "workers", *small)
    assert [block["calls"] for block in found["steady"]["blocks"]] == [30, 60]
    assert {row["workers"] for row in found["workers"]} == {1, 2, 4}
    assert all(row["calls"] >= row["callers"] for row in found["workers"])


def test_envoy(tmp_path: Path) -> None:
    """Each way has each figure."""
    small = ("--large-mib", "1", "--seconds", "0.2", "--turns", "1")
    found = run(tmp_path, "envoy", *small)
    assert set(found) == {"direct", "Envoy", "direct, TLS", "Envoy, TLS"}
    assert all(min(figures.values()) > 0 for figures in found.values())


def test_a_shaped_link(tmp_path: Path) -> None:
    """Nothing is sooner there and back than the link can carry it."""
    try:
        with shaped_link(1e9, 0.001):
            pass
    except OSError as error:
        pytest.skip(str(error))
    small = ("--mib", "2", "--rounds", "1", "--mbit", "500", "--round-trip-ms", "10")
    found = run(tmp_path, "link", *small)
    assert min(found["median_s"].values()) > found["computed_s"] > 0.07
