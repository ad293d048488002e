"""The scripts in examples/ that need torch: they do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.servers import ROOT, embedded

SCRIPT_S = 300

APART = 1e-3
"""How far the losses of 50 steps, of about 2 to 0.1, may be apart. Only sums are rounded in another
order, by 2**-24 in a step; but Adam divides by a gradient's own size, so what is off of one near
zero is not small, and grows with each step."""


def said(script: str, *words: str, status: int = 0) -> str:
    """Run a script and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *words],
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "OPFERRY_TARGET"},
    )
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.full
def test_train_rope() -> None:
    """In 50 steps the loss falls to less than a third, as it does without a server."""
    last = said("train_rope.py").splitlines()[-1]
    found = re.fullmatch(r"loss ([\d.]+) -> ([\d.]+); never further apart than (\S+)", last)
    assert found is not None, last
    first, final, apart = map(float, found.groups())
    assert final < first / 3
    assert apart < APART


@pytest.mark.full
def test_compare_kernels() -> None:
    """Every shape and dtype passes on the CPU reference; a wrong kernel is found by its outputs."""
    table = said("compare_kernels.py").splitlines()
    assert len(table) == 2 + 5 * 3 + 1
    assert table[-1] == "all outputs pass"
    with embedded("SinSignFlipped") as server:
        words = ("--target", server.address, "--shape", "2x8x3x2x16", "--dtype", "bfloat16")
        *_, row, verdict = said("compare_kernels.py", *words, status=1).splitlines()
    assert verdict == "some outputs do not pass"
    assert row.startswith("2x8x3x2x16")
    assert "*" in row


def test_a_shape_that_is_none() -> None:
    """The script says what a shape is."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "compare_kernels.py"), "--shape", "2x8"],
        capture_output=True,
        text=True,
        timeout=SCRIPT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "--shape is 2x8; give BxSxNqxNkxD" in done.stderr
