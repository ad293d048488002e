"""`opferry validate`, as a user runs it, against real servers."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from opferry.cli.__main__ import main
from opferry.cli._ttk_words import NOT_SERVED
from tests.support import servers
from tests.support.processes import eventually

EXAMPLE = servers.ROOT / "examples" / "rotary_cases.csv"


def opferry(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opferry.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream))


def write_cases(path: Path, count: int, shape: Sequence[int] = (4, 2, 8), **cells: str) -> Path:
    """Write a TND case file of *count* equal rows."""
    tokens, heads, width = shape
    whole, one = f"({tokens},{heads},{width})", f"({tokens},1,{width})"
    usual = {
        "api_name": "aclnnApplyRotaryPosEmbGrad",
        "tensor_view_shapes": f"({whole},{whole},{one},{one},None,None,{whole},{whole})",
        "tensor_dtypes": "(" + "'float32'," * 8 + ")",
        "attributes": "{'layout': 4}",
        "output_tensor_indexes": "(6,7)",
    }
    row = {**usual, **cells}
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["testcase_name", *row])
        writer.writeheader()
        for number in range(count):
            writer.writerow({"testcase_name": f"case_{number}", **row})
    return path


def published_files() -> list[Path]:
    folder = os.environ.get("OPFERRY_TTK_DIR")
    return sorted(Path(folder).glob("*.csv")) if folder else []


def test_the_example_passes_on_an_embedded_server(tmp_path: Path) -> None:
    """Without a target the CLI starts a CPU server, says so, and every row passes."""
    result = tmp_path / "result.csv"
    done = opferry("validate", "-i", EXAMPLE, "-o", result)
    assert done.returncode == 0, done.stderr
    assert "embedded CPU server" in done.stderr
    rows = rows_of(result)
    assert len(rows) >= 12
    assert {row["precision_status"] for row in rows} == {"PASS"}
    assert list(rows[0])[: len(rows_of(EXAMPLE)[0])] == list(rows_of(EXAMPLE)[0])
    assert f"{len(rows)} PASS" in done.stdout
    assert "mixed (current edition)" in done.stdout
    assert "SUPPRESSED dcos dsin" in done.stdout


@pytest.mark.parametrize("standard", ["mixed", "stat_rel_err", "close", "binary"])
def test_the_example_passes_by_every_standard(cpu_server: str, standard: str) -> None:
    """The CPU server and the golden are the same reference: equal to the bit."""
    done = opferry("validate", "-i", EXAMPLE, "--target", cpu_server, "--compare", standard)
    assert done.returncode == 0, done.stdout
    assert "embedded" not in done.stderr


@pytest.mark.skipif(not published_files(), reason="OPFERRY_TTK_DIR is not set or holds no CSV")
@pytest.mark.parametrize("where", ["running", "embedded"])
def test_published_files_pass(cpu_server: str, tmp_path: Path, where: str) -> None:
    """The users' own files, NaN and infinity rows included, with suppressed outputs shown."""
    for path in published_files():
        result = tmp_path / path.name
        target = ["--target", cpu_server] if where == "running" else []
        done = opferry("validate", "-i", path, "-o", result, *target)
        assert done.returncode == 0, done.stdout + done.stderr
        for row in rows_of(result):
            assert row["precision_status"] == "PASS"
            assert row["grad_query_status"] == "PASS"
            assert row["grad_cos_status"] == "SUPPRESSED"


@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "output"),
    [
        ("SinSignFlipped", "grad_query"),
        ("HalvesSwapped", "grad_query"),
        ("OneElementOff", "grad_key"),
    ],
)
def test_a_wrong_kernel_is_found(tmp_path: Path, backend: str, output: str) -> None:
    """Exit 1, and the text names row, output and worst element."""
    result = tmp_path / "result.csv"
    with servers.embedded(backend) as server:
        done = opferry("validate", "-i", EXAMPLE, "--target", server.address, "-o", result)
    assert done.returncode == 1
    failed = [row for row in rows_of(result) if row["precision_status"] == "FAIL"]
    assert len(failed) >= 6
    first = failed[0]
    assert first[f"{output}_status"] == "FAIL"
    assert first[f"{output}_worst_index"]
    line = next(line for line in done.stdout.splitlines() if first["testcase_name"] + ":" in line)
    assert line.startswith("row ")
    assert f"{output}: " in line
    assert "worst at" in line or "first at" in line


def test_a_server_that_stops_in_mid_run(tmp_path: Path) -> None:
    """Exit 3; the rows before are judged, the rows after say NOT RUN."""
    cases = write_cases(
        tmp_path / "cases.csv", 40, input_data_ranges="((0,1),(0,1),(0.2,0.2),(0,1))"
    )
    result = tmp_path / "result.csv"
    with servers.embedded("SleepBackend") as server:
        command = [sys.executable, "-m", "opferry.cli", "validate", "-i", str(cases)]
        command += ["-o", str(result), "--target", server.address, "--run", "1"]
        command += ["--reconnect", "1"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            assert eventually(lambda: result.exists() and result.read_text().count("PASS") > 6, 30)
            server.process.kill()
            said, errors = run.communicate(timeout=60)
        assert run.returncode == 3
    statuses = [row["precision_status"] for row in rows_of(result)]
    assert len(statuses) == 40
    passed = statuses.count("PASS")
    assert 0 < passed < 40
    assert statuses == ["PASS"] * passed + ["NOT RUN"] * (40 - passed)
    assert f"{passed} PASS, {40 - passed} NOT RUN" in said
    assert "this is no pass" in errors


def test_an_unreachable_server_is_no_pass(tmp_path: Path) -> None:
    """Nobody at the address: exit 3 and NOT RUN in every row."""
    result = tmp_path / "result.csv"
    target = f"127.0.0.1:{servers.free_port()}"
    done = opferry("validate", "-i", EXAMPLE, "--target", target, "-o", result)
    assert done.returncode == 3
    assert {row["precision_status"] for row in rows_of(result)} == {"NOT RUN"}
    assert target in done.stdout


def test_the_target_may_come_from_the_environment(cpu_server: str) -> None:
    """OPFERRY_TARGET names the server."""
    done = opferry("validate", "-i", EXAMPLE, OPFERRY_TARGET=cpu_server)
    assert done.returncode == 0
    assert cpu_server in done.stdout
    assert "embedded" not in done.stderr


def test_rows_are_chosen_by_name(cpu_server: str, tmp_path: Path) -> None:
    """-t runs the named rows only; a name that no row has is exit 2."""
    cases = write_cases(tmp_path / "cases.csv", 5)
    done = opferry(
        "validate", "-i", cases, "--target", cpu_server, "-t", "case_3, case_1", "--json"
    )
    assert [row["testcase_name"] for row in json.loads(done.stdout)] == ["case_1", "case_3"]
    missing = opferry("validate", "-i", cases, "--target", cpu_server, "-t", "case_9")
    assert missing.returncode == 2
    assert "case_9" in missing.stderr


def test_the_runs_are_counted_and_timed(cpu_server: str, tmp_path: Path) -> None:
    """--run N runs the operator N times, --json tells it, and the seed decides the inputs."""
    cases = write_cases(tmp_path / "cases.csv", 1)
    words = ["validate", "-i", cases, "--target", cpu_server, "--json"]
    (row,) = json.loads(opferry(*words, "--run", "5").stdout)
    assert row["run_count"] == 5
    assert row["kernel_min_us"] <= row["kernel_us"] <= row["kernel_max_us"]
    assert row["precision_status"] == "PASS"
    (default,) = json.loads(opferry(*words).stdout)
    assert default["run_count"] == 3
    assert default["real_device"] is False
    assert default["grad_query_share"] == 1.0


def test_a_disabled_row_is_not_run_and_no_pass(cpu_server: str, tmp_path: Path) -> None:
    """Disabled rows are shown; a file of nothing else is exit 3."""
    cases = write_cases(tmp_path / "cases.csv", 2, is_enabled="False")
    done = opferry("validate", "-i", cases, "--target", cpu_server)
    assert done.returncode == 3
    assert "2 DISABLED" in done.stdout


def test_a_row_that_breaks_the_contract_is_no_pass(cpu_server: str, tmp_path: Path) -> None:
    """The row is an ERROR with the rule and its status; the others are judged; exit 1."""
    cases = write_cases(tmp_path / "cases.csv", 2)
    first, found, last = cases.read_text().rpartition("'layout': 4")
    assert found
    cases.write_text(f"{first}'layout': 3{last}")
    done = opferry("validate", "-i", cases, "--target", cpu_server, "--json")
    assert done.returncode == 1
    good, bad = json.loads(done.stdout)
    assert good["precision_status"] == "PASS"
    assert bad["precision_status"] == "ERROR"
    assert "161002" in bad["reason"]
    assert "reserved" in bad["reason"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "testcase_name"),
        ("testcase_name,api_name,tensor_view_shapes,tensor_dtypes\n", "row"),
        (
            "testcase_name,api_name,tensor_view_shapes,tensor_dtypes\n"
            "x,aclnnApplyRotaryPosEmbGrad,__import__('os').getpid(),('fp32')\n",
            "row 2, column tensor_view_shapes",
        ),
        (
            "testcase_name,api_name,tensor_view_shapes,tensor_dtypes,attributes\n"
            "x,aclnnApplyRotaryPosEmbGrad,\"((1,1,2),)\",\"('fp32',)\",{'layuot': 4}\n",
            "layuot",
        ),
    ],
    ids=["empty", "wrong columns", "no rows", "code", "unknown attribute"],
)
def test_a_wrong_file_is_one_line_and_exit_2(tmp_path: Path, content: str, words: str) -> None:
    """What is wrong, where; nothing is run, and no server is started for it."""
    path = tmp_path / "cases.csv"
    path.write_text(content)
    done = opferry("validate", "-i", path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "embedded" not in done.stderr


def test_an_unknown_column_is_said_and_a_misspelt_one_refused(
    cpu_server: str, tmp_path: Path
) -> None:
    """A typo in a column that may be left out must not change what is tested, unsaid."""
    cases = write_cases(tmp_path / "cases.csv", 1, owner="me")
    done = opferry("validate", "-i", cases, "--target", cpu_server)
    assert done.returncode == 0
    assert "not used: owner" in done.stderr
    wrong = write_cases(tmp_path / "wrong.csv", 1, input_data_range="((nan,nan),)")
    done = opferry("validate", "-i", wrong, "--target", cpu_server)
    assert done.returncode == 2
    assert "input_data_ranges" in done.stderr


@pytest.mark.parametrize("word", sorted(NOT_SERVED))
def test_a_word_of_ttks_that_is_not_served_is_refused_by_name(word: str) -> None:
    """It is never ignored, and says what to use instead."""
    done = CliRunner().invoke(main, ["validate", "-i", EXAMPLE, word, "x"])
    assert done.exit_code == 2
    assert f"{word} is a word of TTK's that is not served here; {NOT_SERVED[word]}" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--compare", "requant"], "float8"),
        (["--dump", "in", "--dump-format", "print"], "numpy.load"),
        (["--dl", "2"], "graph compiler"),
        (["--dump", "everything"], "full"),
        (["-o", "a.csv", "-a", "b.csv"], "exclude each other"),
        (["--resume"], "--resume needs"),
        (["--compare", "cross_check"], "--against-target"),
        (["--against-package", "mine"], "cross_check only"),
        (["--compare", "close", "--edition", "earlier"], "mixed only"),
        (["--ti", "7-3"], "lower end first"),
        (["--ti", "99"], "99"),
        (["--warmup", "often"], "number of runs"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], advice: str) -> None:
    """One line says why, nothing is run, and no server is started for it."""
    done = CliRunner().invoke(main, ["validate", "-i", EXAMPLE, *words])
    assert done.exit_code == 2, done.output
    assert advice in " ".join(done.stderr.split())
    assert "embedded" not in done.stderr


@pytest.mark.parametrize(
    "words", [["-t", ""], ["-t", " , "], ["--target", ""], ["--timeout", "0"], ["--run", "0"]]
)
def test_an_empty_word_is_exit_2(words: list[str]) -> None:
    """An unset variable on the command line turns neither into no rows nor into another server."""
    done = opferry("validate", "-i", EXAMPLE, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "embedded" not in done.stderr


def test_names_with_brackets_are_shown_as_they_are(cpu_server: str, tmp_path: Path) -> None:
    """What looks like markup is text."""
    cases = write_cases(tmp_path / "cases[old].csv", 1)
    cases.write_text(cases.read_text().replace("case_0", "x[/red]y[bold]z"))
    done = opferry("validate", "-i", cases, "--target", cpu_server)
    assert done.returncode == 0, done.stderr
    assert "x[/red]y[bold]z" in done.stdout
    assert "cases[old].csv" in done.stdout


def test_an_interrupt_is_no_pass(tmp_path: Path) -> None:
    """Ctrl-C ends the run with exit 3 and leaves whole rows and no server behind."""
    cases = write_cases(tmp_path / "cases.csv", 3000)
    result = tmp_path / "result.csv"
    command = [sys.executable, "-m", "opferry.cli", "validate", "-i", str(cases), "-o", str(result)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert eventually(lambda: result.exists() and result.read_text().count("PASS") > 20, 30)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 3
    assert "Traceback" not in errors
    rows = rows_of(result)
    assert all(row["total_us"] for row in rows if row["precision_status"] == "PASS")
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)
