"""`opferry cases`, and `opferry validate` on what it writes, against real servers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from opferry.embedded import embedded_server
from opferry.operators import OPERATORS
from opferry.validation import read_cases
from tests.cli.test_validate import opferry, rows_of
from tests.support import servers, simulator

OPERATOR = ("--operator", "apply_rotary_pos_emb_grad")
NAMES = [operator.python_name for operator in OPERATORS.values()]


def made(path: Path, *words: str, operator: str = OPERATOR[1]) -> Path:
    """Write a suite of an operator and return its path."""
    done = opferry("cases", "--operator", operator, *words, "-o", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}: {len(rows_of(path))} cases\n"
    return path


def verdicts(result: Path) -> Counter[str]:
    return Counter(row["precision_status"] for row in rows_of(result))


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("kind", ["aclnn", "e2e"])
def test_a_slice_of_level_l0_passes(
    cpu_server: str, tmp_path: Path, operator: str, kind: str
) -> None:
    """Every row, on the CPU server."""
    words = ["--level", "L0", "--rows", "60", "--format", kind]
    file = made(tmp_path / "cases.csv", *words, operator=operator)
    result = tmp_path / "result.csv"
    words = ["-i", file, "-o", result, "--target", cpu_server, "--run", "1"]
    done = opferry("validate", *words)
    assert done.returncode == 0, done.stdout
    assert verdicts(result) == {"PASS": 60}


@pytest.mark.parametrize("operator", NAMES)
def test_a_slice_of_level_l0_passes_on_the_simulator(tmp_path: Path, operator: str) -> None:
    """Views and special values too; of the forward what is overwritten are the server's copies."""
    file = made(tmp_path / "cases.csv", "--rows", "60", operator=operator)
    result = tmp_path / "result.csv"
    with embedded_server(backend="aclnn", environment=simulator.environment()) as server:
        done = opferry("validate", "-i", file, "-o", result, "--target", server.address)
    assert done.returncode == 0, done.stdout
    assert verdicts(result) == {"PASS": 60}


@pytest.mark.full
@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("backend", ["SinSignFlipped", "HalvesSwapped", "OneElementOff"])
def test_a_slice_of_level_l0_finds_a_wrong_kernel(
    tmp_path: Path, operator: str, backend: str
) -> None:
    """Exit 1, with many rows that fail."""
    file = made(tmp_path / "cases.csv", "--rows", "60", operator=operator)
    result = tmp_path / "result.csv"
    with servers.embedded(backend) as server:
        words = ["-i", file, "-o", result, "--target", server.address, "--run", "1"]
        done = opferry("validate", *words)
    assert done.returncode == 1
    assert verdicts(result)["FAIL"] >= 20
    assert set(verdicts(result)) == {"PASS", "FAIL"}


@pytest.mark.parametrize("operator", NAMES)
@pytest.mark.parametrize("check", ["--check", "--no-check"])
def test_the_negative_suite_passes(
    cpu_server: str, tmp_path: Path, operator: str, check: str
) -> None:
    """Every row is refused as it is to be; the terminal does not say so a hundred times."""
    file = made(tmp_path / "cases.csv", "--negative", operator=operator)
    result = tmp_path / "result.csv"
    done = opferry("validate", "-i", file, "-o", result, "--target", cpu_server, check)
    assert done.returncode == 0, done.stdout
    assert verdicts(result) == {"PASS": len(read_cases(file).cases)}
    assert all(row["expected_status"] in row["reason"] for row in rows_of(result))
    assert "expected 161002" not in done.stdout


@pytest.mark.parametrize("operator", NAMES)
def test_the_negative_suite_passes_on_the_simulator(tmp_path: Path, operator: str) -> None:
    """Without the check it is the host code of the simulated operator that refuses."""
    file = made(tmp_path / "cases.csv", "--negative", operator=operator)
    result = tmp_path / "result.csv"
    with embedded_server(backend="aclnn", environment=simulator.environment()) as server:
        words = ["-i", file, "-o", result, "--target", server.address, "--no-check"]
        done = opferry("validate", *words)
    assert done.returncode == 0, done.stdout
    native = [row for row in rows_of(result) if "GetWorkspaceSize returned 16100" in row["reason"]]
    assert len(native) >= 80


def test_a_suite_that_is_not_refused_fails(cpu_server: str, tmp_path: Path) -> None:
    """A good row that expects a refusal: exit 1."""
    file = made(tmp_path / "cases.csv", "--rows", "1")
    header, row = file.read_text().splitlines()
    file.write_text(f"{header},expected_status\n{row},161002\n")
    done = opferry("validate", "-i", file, "--target", cpu_server)
    assert done.returncode == 1
    assert "FAIL: succeeded; it was to be refused with 161002" in done.stdout


def test_sizes_and_distributions(tmp_path: Path) -> None:
    """A budget in units, and the column of distributions."""
    words = ["--rows", "50", "--level", "L1", "--largest-bytes", "300KiB"]
    file = made(tmp_path / "cases.csv", *words)
    for case in read_cases(file).cases:
        assert sum(spec.data_bytes for spec in case.inputs.values()) <= 300 * 1024
    file = made(tmp_path / "cases.csv", "--rows", "50", "--input-dist", "both")
    assert 15 < sum(row["normal_distribution"] == "True" for row in rows_of(file)) < 35


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--level", "L3"], "'L3' is not one of 'L0', 'L1', 'L2'"),
        (["--rows", "0"], "0 is not in the range x>=1"),
        (["--largest-bytes", "much"], "'much' is not a size such as 128MiB"),
        (["--largest-bytes", "1KiB"], "largest_bytes is 1024; allowed is 262144 and more"),
        (["--format", "xlsx"], "'xlsx' is not one of 'aclnn', 'e2e'"),
        (["--operator", "Softmax"], "operator 'Softmax' is not known here"),
        (["--negative", "--rows", "5"], "--rows says nothing about --negative cases"),
        (["--negative", "--level", "L0"], "--level says nothing about --negative cases"),
        (["-o", "/proc/none/cases.csv"], "/proc/none/cases.csv: cannot be written: "),
        (["-o", "/"], "is a directory"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path: Path, words: list[str], said: str) -> None:
    """One line, exit 2, and no file."""
    file = tmp_path / "cases.csv"
    done = opferry("cases", *OPERATOR, "-o", file, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not file.exists()


def test_operator_and_file_are_required(tmp_path: Path) -> None:
    """There is no default that could surprise."""
    for words in (["-o", tmp_path / "cases.csv"], OPERATOR):
        done = opferry("cases", *words)
        assert done.returncode == 2
        assert "Missing option" in done.stderr


def test_the_choices_are_the_generators() -> None:
    """The command knows them without loading the generator."""
    from opferry.cli import cases
    from opferry.validation import generation

    assert tuple(generation.LEVELS) == cases.LEVELS
    assert generation.FORMATS == cases.FORMATS
    assert generation.DISTRIBUTIONS == cases.DISTRIBUTIONS
