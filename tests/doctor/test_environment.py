"""What is said of the variables, and how lines are laid out."""

from __future__ import annotations

from pathlib import Path

import pytest

from opferry_server.config import load_config
from opferry_server.doctor.environment import environment_checks, source_hint
from opferry_server.doctor.examination import Examination
from opferry_server.doctor.outcomes import Check, Outcome
from opferry_server.doctor.report import examination_text

OK, WARNING, FAILED = Outcome.OK, Outcome.WARNING, Outcome.FAILED


@pytest.mark.parametrize(
    ("name", "value", "outcome", "words"),
    [
        ("ASCEND_HOME_PATH", "/usr", OK, "/usr"),
        ("ASCEND_HOME_PATH", "/nowhere", WARNING, "is no folder"),
        ("ASCEND_OPP_PATH", "", WARNING, "not set"),
        ("LD_LIBRARY_PATH", "/usr:/nowhere", OK, "not there: /nowhere"),
        ("LD_LIBRARY_PATH", "/nowhere", WARNING, "not there: /nowhere"),
        ("ASCEND_CUSTOM_OPP_PATH", "/usr", WARNING, "without op_api/lib/libcust_opapi.so: /usr"),
        ("ASCEND_RT_VISIBLE_DEVICES", "0,1", OK, "0,1"),
        ("ASCEND_RT_VISIBLE_DEVICES", "4,5", OK, "in their order"),
        ("ASCEND_RT_VISIBLE_DEVICES", "4", FAILED, "1 for 2 workers"),
        ("ASCEND_RT_VISIBLE_DEVICES", "", FAILED, "0 for 2 workers"),
        ("ASCEND_GLOBAL_LOG_LEVEL", "3", OK, "3 (error)"),
        ("ASCEND_GLOBAL_LOG_LEVEL", "1", WARNING, "1 (info)"),
        ("ASCEND_GLOBAL_LOG_LEVEL", "error", WARNING, "is no level"),
    ],
)
def test_variables(tmp_path: Path, name: str, value: str, outcome: Outcome, words: str) -> None:
    """What is wrong has a remedy; only a want of devices fails: the libraries decide."""
    config = load_config(["--workers", "2"])
    checks = {item.name: item for item in environment_checks({name: value}, tmp_path, config)}
    assert checks[name].outcome is outcome
    assert words in checks[name].found
    assert bool(checks[name].remedy) == (outcome is not OK)


def test_the_toolkits_script_comes_first(tmp_path: Path) -> None:
    """Other packages beside it have one, too."""
    for name in ("aaa", "ascend-toolkit", "nnal"):
        folder = tmp_path / "usr/local/Ascend" / name
        folder.mkdir(parents=True)
        (folder / "set_env.sh").touch()
    assert source_hint(tmp_path) == f"source {tmp_path}/usr/local/Ascend/ascend-toolkit/set_env.sh"


def test_lines_fit_a_terminal() -> None:
    """Long texts go on below their own column; a pipe gets one line for each text."""
    check = Check("group", "name", Outcome.FAILED, "word " * 40, "remedy " * 20)
    examination = Examination((check, Check("group", "n" * 40, Outcome.OK, "fine")))
    lines = examination_text(examination, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "remedy: remedy" in line]
    long = examination_text(examination, None).splitlines()
    assert len(long) < len(lines)
    assert long[0] == "group"
