"""The README's table of rules: complete, and every case that it names is there and passes."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.simulator import build as simulator

SECTION = "## The rules, and the programs that break them"
RULES = [f"R{number}" for number in range(1, 6)]
FACTS = [f"C{number}" for number in range(1, 14)]


def rows() -> list[list[str]]:
    """The cells of all rows of the section's tables, without heads and rules."""
    text = (simulator.HERE / "README.md").read_text()
    section = text.split(SECTION, 1)[1].split("\n## ", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return [row for row in cells if re.match(r"[RC]\d+\b", row[0])]


def cases_of(cell: str) -> dict[str, list[str]]:
    """The cases by program that a cell names."""
    found = {}
    for program, names in re.findall(r"`(test_\w+): ([\w, ]+)`", cell):
        found[program] = [name.strip() for name in names.split(",")]
    return found


def all_cases() -> dict[str, set[str]]:
    """Every case that the section names, by program."""
    named: dict[str, set[str]] = defaultdict(set)
    for row in rows():
        for program, names in cases_of(row[-1]).items():
            named[program].update(names)
    return named


def test_each_rule_and_fact_has_its_row() -> None:
    """None is left out, and each row that can be broken names the cases that do so."""
    breakable = [row for row in rows() if len(row) == 3]
    assert [row[0].split(":")[0] for row in breakable] == [*RULES, *FACTS]
    for rule, what, caught in breakable:
        assert what, rule
        assert cases_of(caught), rule


def test_what_cannot_be_broken_says_why() -> None:
    """The exceptions are parts of facts above, each with its reason."""
    exceptions = [row for row in rows() if len(row) == 2]
    assert exceptions
    for fact, why in exceptions:
        assert re.match(r"C\d+, ", fact), fact
        assert len(why) > 20, fact


@pytest.mark.parametrize("program", sorted(all_cases()))
def test_the_cases_that_the_table_names_run(built: Path, program: str) -> None:
    """A name that is no case of its program is not run, and the count tells."""
    names = sorted(all_cases()[program])
    done = subprocess.run([built / program, *names], capture_output=True, text=True, timeout=100)
    assert done.stdout.endswith(f": {len(names)} cases, 0 failed\n"), done.stdout + done.stderr


def test_no_program_is_without_a_row() -> None:
    """A new program of broken rules is entered, or named here with what else it is for."""
    others = {
        "test_faults",  # the fault rules themselves
        "test_operator",  # results
        "test_records",  # report, log, counters
        "test_stress",  # nothing broken from many threads
        "test_vendor_sequence",  # nothing broken
    }
    programs = {path.stem for path in simulator.HERE.glob("test_*.c")}
    assert programs == set(all_cases()) | others


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder of the simulator's build."""
    if why := simulator.missing_tools():
        pytest.skip(why)
    return simulator.build()
