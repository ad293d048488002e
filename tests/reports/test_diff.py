"""What changed from one run to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opferry.reports import RunDifference, compare_runs, read_run
from opferry.validation.records import CaseRecord
from tests.support.run_records import (
    case_record,
    golden,
    output_record,
    rounded_off,
    run_record,
    write_record,
)

SHAPE = (4, 2, 8)
RIGHT = golden(shape=SHAPE)
SAME = output_record(RIGHT, RIGHT)
OFF = output_record(rounded_off(RIGHT), RIGHT)


def compared(
    tmp_path: Path,
    before: list[CaseRecord],
    after: list[CaseRecord],
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> RunDifference:
    first = write_record(tmp_path / "a.jsonl", run_record(), *before)
    second = write_record(tmp_path / "b.jsonl", run_record(**(settings or {})), *after)
    return compare_runs(read_run(first), read_run(second), **options)


def timed(name: str, kernel_us: float, row: int = 2) -> CaseRecord:
    return case_record(row, name, outputs=[SAME], kernel_us=kernel_us)


def named(items: list[Any]) -> list[str]:
    return [item.name for item in items]


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    """Nothing is told but how many cases there are."""
    cases = [case_record(2, "a", outputs=[OFF]), case_record(3, "b", "FAIL", outputs=[OFF])]
    found = compared(tmp_path, cases, cases)
    assert named(found.still_failing) == ["b"]
    found.still_failing.clear()
    assert found == RunDifference(both_count=2)


def test_verdicts(tmp_path: Path) -> None:
    """NOT RUN is no pass, and DISABLED is as if the case were not there."""
    words = {
        "same": ("PASS", "PASS"),
        "broke": ("PASS", "FAIL"),
        "was refused": ("PASS", "ERROR"),
        "was not run": ("PASS", "NOT RUN"),
        "fixed": ("FAIL", "PASS"),
        "came to run": ("NOT RUN", "PASS"),
        "fails": ("FAIL", "ERROR"),
        "off": ("DISABLED", "DISABLED"),
        "went off": ("PASS", "DISABLED"),
        "went on": ("DISABLED", "PASS"),
        "gone": ("FAIL", None),
        "new": (None, "FAIL"),
    }
    sides = [
        [
            case_record(row, name, both[side] or "", f"reason {side}")
            for row, (name, both) in enumerate(words.items(), 2)
            if both[side] is not None
        ]
        for side in (0, 1)
    ]
    found = compared(tmp_path, *sides)
    assert named(found.broken) == ["broke", "was refused", "was not run"]
    assert named(found.missing) == ["went off", "gone"]
    assert named(found.fixed) == ["fixed", "came to run"]
    assert named(found.still_failing) == ["fails"]
    assert named(found.new) == ["went on", "new"]
    assert found.both_count == 7
    assert found.is_worse
    assert found.broken[0] == ("broke", "PASS", "FAIL", "reason 1")
    assert found.missing[1] == ("gone", "FAIL", "", "reason 0")


def test_other_bits_at_the_same_verdict(tmp_path: Path) -> None:
    """They are told where the inputs were the same, since else they say nothing."""
    before = [case_record(2, "a", outputs=[SAME]), case_record(3, "b", outputs=[SAME])]
    after = [case_record(2, "a", outputs=[OFF]), case_record(3, "b", outputs=[OFF])]
    after[1]["inputs"][0]["digest"] = "0" * 16
    found = compared(tmp_path, before, after)
    assert found.changed_bits == [("a", "PASS", ("dq",))]
    assert found.other_inputs == ["b"]
    assert not found.is_worse


def test_times(tmp_path: Path) -> None:
    """A ratio and a least difference decide; cases that were not timed do not count."""
    before = [timed("a", 100), timed("b", 100, 3), timed("c", 4, 4), timed("d", 0, 5)]
    after = [timed("a", 121), timed("b", 50, 3), timed("c", 8, 4), timed("d", 900, 5)]
    found = compared(tmp_path, before, after)
    assert found.slower == [("a", 100.0, 121.0)]
    assert found.faster == [("b", 100.0, 50.0)]
    assert found.slower[0].ratio == pytest.approx(1.21)
    assert not found.is_worse
    assert not compared(tmp_path, before, after, slower=3).slower
    assert named(compared(tmp_path, before, after, floor_us=1).slower) == ["c", "a"]


def test_what_the_runs_do_not_have_in_common(tmp_path: Path) -> None:
    """Settings, case file and package are told; when they ran is not."""
    package = {"operator_package": "mine", "package_digest": "cd" * 32}
    changes = {"settings__seed": 8, "case_file_sha256": "ef" * 32, "started": "2027"}
    found = compared(
        tmp_path,
        [case_record(2, "a", outputs=[SAME])],
        [case_record(2, "a", outputs=[SAME], **package)],
        changes,
    )
    assert [tuple(item) for item in found.settings] == [
        ("case file SHA-256", "ab" * 32, "ef" * 32),
        ("seed", "7", "8"),
        ("executed by: operator package", "built-in", "mine"),
        ("executed by: package digest", "", "cd" * 32),
    ]
