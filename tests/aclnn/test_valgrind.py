"""Ten requests of the backend on the simulator under valgrind: no C code is misused."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.aclnn import in_process

SUPPRESSIONS = Path(__file__).with_name("valgrind.supp")

OURS = ("libascendcl", "libnnopbase", "libopapi", "_ctypes", "libffi")
"""The objects whose frames make an error ours: the simulator, and the way into it."""

FOREIGN_KINDS = ("Leak_DefinitelyLost", "UninitCondition", "UninitValue")
"""What another release of the interpreter or of numpy may add without a frame of `OURS`; anything
else, such as a write behind a block, counts wherever it shows."""

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def under_valgrind(tmp_path: Path, *arguments: str) -> list[str]:
    """Run the ten requests; return the errors that count, each as its kind and its frames."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    found = tmp_path / "valgrind.xml"
    before = [
        *("valgrind", "--xml=yes", f"--xml-file={found}", f"--suppressions={SUPPRESSIONS}"),
        *("--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"),
        *("--num-callers=40", "--child-silent-after-fork=yes"),
    ]
    done = in_process.start("tests.aclnn.ten_requests", *arguments, before=before, timeout_s=800)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "ten requests: done" in done.stdout
    errors = ET.parse(found).iter("error")  # noqa: S314 - valgrind wrote it
    return [text for error in errors if (text := _counted(error))]


def _counted(error: ET.Element) -> str:
    """Return an error's kind and frames, "" if it does not count."""
    kind = error.findtext("kind") or "?"
    frames = [
        (Path(frame.findtext("obj") or "?").name, frame.findtext("fn") or "?")
        for frame in error.iter("frame")
    ]
    ours = any(name.startswith(OURS) for name, _ in frames)
    if not ours and kind in FOREIGN_KINDS:
        return ""
    return f"{kind}: " + " < ".join(f"{function} ({name})" for name, function in frames[:12])


def test_ten_requests_are_clean(tmp_path: Path) -> None:
    """No invalid access, no undefined value and no leak in the simulator or through ctypes."""
    assert under_valgrind(tmp_path) == []


@pytest.mark.parametrize(
    ("mistake", "kind", "where"),
    [
        ("leak", "Leak_DefinitelyLost", "libffi"),
        ("read", "InvalidRead", "libffi"),
        ("library", "InvalidWrite", "libascendcl"),
        ("undefined", "UninitCondition", "libnnopbase"),
    ],
)
def test_no_suppression_hides_a_mistake(
    tmp_path: Path, mistake: str, kind: str, where: str
) -> None:
    """A leak, a read behind a block, a buffer too small, an undefined value: each is reported."""
    found = under_valgrind(tmp_path, mistake)
    assert any(text.startswith(kind) and where in text for text in found), found


def test_each_suppression_says_why() -> None:
    """Every entry, or group of entries of one cause, follows a comment."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    text = SUPPRESSIONS.read_text()
    groups = [group for group in re.split(r"\n\n+", text) if "{" in group]
    assert groups
    for group in groups:
        assert group.startswith("# "), group
    for name in ("libascendcl", "libnnopbase", "libopapi", "ctypes", "libffi"):
        entries = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert name not in entries
    subprocess.run(
        ["valgrind", "-q", f"--suppressions={SUPPRESSIONS}", "true"], check=True, timeout=60
    )
