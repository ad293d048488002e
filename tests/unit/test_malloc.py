"""The tuned allocator, by the pages that a process asks for."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from opferry import tune_malloc
if sys.argv[1] == "tuned" and not tune_malloc():
    sys.exit("not glibc")
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def message():
    return [b"x" * 2**21 for _ in range(8)]
message()
before = faults()
for _ in range(50):
    message()
print(faults() - before)
"""


def faults(kind: str) -> int:
    """The pages that fifty messages of eight blocks cost, one after the other."""
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=False
    )
    if "not glibc" in said.stderr:
        pytest.skip("this C library is not glibc: there is nothing to tune")
    return int(said.stdout)


def test_freed_blocks_are_used_again() -> None:
    """Tuned, the pages of one message do for all; untuned most cost their own."""
    pages = 8 * 2**21 // 4096
    assert faults("tuned") < 3 * pages
    assert faults("untuned") > 20 * pages
