"""Runs of whole suites: going on, appending, running again, dumps, and two implementations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from opferry.validation import read_cases
from opferry.validation.dumps import FORMATS
from tests.support import seeded_bugs, servers
from tests.support.calls import FORWARD, GRAD, Subject
from tests.support.processes import eventually
from tests.support.suite_runs import command, rows_of, run, steady, write_rows_of, write_suite
from tests.support.workbooks import workbook_of

pytestmark = pytest.mark.full

EXAMPLES = {
    GRAD.name: servers.ROOT / "examples" / "rotary_cases.csv",
    FORWARD.name: servers.ROOT / "examples" / "forward_cases.csv",
}


@pytest.fixture(scope="module")
def broken_server() -> object:
    """The address of a server whose last key head is never written."""
    path = f"{seeded_bugs.__name__}:LastHeadUnwritten"
    with servers.embedded_server(
        backend=path, environment={"PYTHONPATH": servers.PYTHONPATH}
    ) as server:
        yield server.address


def test_a_killed_run_goes_on(cpu_server: str, tmp_path: Path, subject: Subject) -> None:
    """SIGKILL leaves whole rows; --resume runs the rest, and the result is that of one run."""
    suite = write_suite(tmp_path / "suite.csv", 300, subject=subject)
    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    words = ["validate", "-i", suite, "--target", cpu_server, "--run", "1", "-o"]
    assert run(*words, whole).returncode == 0
    counts = []
    for _ in range(3):
        before = len(rows_of(parts)) if counts else 0
        more = [*words, parts, *(["--resume"] if counts else [])]
        with subprocess.Popen(
            command(*more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            reached = eventually(lambda: _recorded(parts) > (counts or [0])[-1] + 20, 60)
            assert reached, before
            process.kill()
        counts.append(_recorded(parts))
    assert counts[-1] < 300, "the run was over before it could be killed"
    done = run(*words, parts, "--resume")
    assert done.returncode == 0, done.stderr
    assert steady(rows_of(parts)) == steady(rows_of(whole))
    lines = [json.loads(line) for line in parts.with_suffix(".jsonl").read_text().splitlines()]
    rows = [line["row"] for line in lines if line["kind"] == "case"]
    assert sorted(rows) == list(range(2, 302))
    assert sum(line["kind"] == "run" for line in lines) == 4


def _recorded(result: Path) -> int:
    record = result.with_suffix(".jsonl")
    return record.read_bytes().count(b'{"kind":"case"') if record.exists() else 0


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C is exit 3 with a hint; what was recorded is not run again."""
    suite = write_suite(tmp_path / "suite.csv", 600)
    result = tmp_path / "result.csv"
    words = command("validate", "-i", suite, "-o", result, "--run", "1")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert eventually(lambda: len(rows_of(result)) > 20, 60)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "go on with --resume" in errors
    assert "Traceback" not in errors
    count = len(rows_of(result))
    with servers.embedded("CustomBackend") as server:
        target = ["--target", server.address]
        done = run("validate", "-i", suite, "-o", result, "--run", "1", "--resume", *target)
    assert done.returncode == 0, done.stderr
    assert len(rows_of(result)) == 600
    assert count < 600


def test_an_interrupt_at_any_moment(cpu_server: str, tmp_path: Path) -> None:
    """Wherever Ctrl-C comes, the run ends at once, with exit 3 and whole rows."""
    suite = write_suite(tmp_path / "suite.csv", 900)
    for turn in range(8):
        result = tmp_path / f"{turn}.csv"
        words = command("validate", "-i", suite, "-o", result, "--run", "1", "--target", cpu_server)
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert eventually(lambda result=result: _recorded(result) > 5, 60)
            time.sleep(0.05 * turn)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 3, errors
        assert "interrupted; go on with --resume" in errors
        assert "Traceback" not in errors
        rows = rows_of(result)
        assert {row["precision_status"] for row in rows} == {"PASS"}
        assert _recorded(result) == len(rows)


def test_an_interrupt_while_a_case_runs_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C does not wait for the case that is under way."""
    asleep = {"input_data_ranges": "(None,None,(50,50),None,None,None,None,None)"}
    cases = write_rows_of(tmp_path / "cases.csv", [asleep])
    result, sleeper = tmp_path / "result.csv", tmp_path / "sleeper"
    monkeypatch.setenv("OPFERRY_TEST_SLEEPER", str(sleeper))
    with servers.embedded("SleepBackend") as server:
        words = command("validate", "-i", cases, "-o", result, "--run", "1")
        with subprocess.Popen(
            [*words, "--target", server.address], stderr=subprocess.PIPE, text=True
        ) as process:
            assert eventually(sleeper.exists, 60)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 3, errors
    assert rows_of(result) == []


def test_an_interrupted_run_is_not_lost_to_the_next(cpu_server: str, tmp_path: Path) -> None:
    """Who forgets --resume still has the verdicts; of a run that was whole nothing is kept."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}, {}])
    result = tmp_path / "result.csv"
    record = result.with_suffix(".jsonl")
    base = ["validate", "-i", cases, "--target", cpu_server, "-o", result]
    assert run(*base).returncode == 0
    lines = record.read_bytes().splitlines(keepends=True)
    for name in ("result.jsonl.interrupted", "result.jsonl.interrupted2"):
        record.write_bytes(b"".join(lines[:-1]) + b'{"kind":"ca')
        before = record.read_bytes()
        done = run(*base)
        assert done.returncode == 0
        assert f"kept as {tmp_path / name}; to go on with one, give --resume" in done.stderr
        assert (tmp_path / name).read_bytes() == before
    done = run(*base)
    assert "interrupted" not in done.stderr
    (tmp_path / "result.jsonl.interrupted").replace(record)
    assert run(*base, "--resume").returncode == 0
    assert len(list(tmp_path.glob("*.interrupted*"))) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seed", "1"], "seed was 0 and is 1"),
        (["--compare", "close"], "standard was mixed and is close"),
        (["--run", "2"], "repeat was 3 and is 2"),
    ],
)
def test_another_run_is_not_gone_on_with(
    cpu_server: str, tmp_path: Path, words: list[str], said: str
) -> None:
    """Other settings, or a changed file, are named; the record stays as it is."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}])
    result = tmp_path / "result.csv"
    base = ["validate", "-i", cases, "--target", cpu_server, "-o", result]
    assert run(*base).returncode == 0
    before = result.with_suffix(".jsonl").read_bytes()
    done = run(*base, "--resume", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert result.with_suffix(".jsonl").read_bytes() == before
    write_rows_of(cases, [{}, {}, {}])
    done = run(*base, "--resume")
    assert done.returncode == 2
    assert "or has changed since" in done.stderr


def test_a_torn_record_goes_on_at_its_last_whole_line(cpu_server: str, tmp_path: Path) -> None:
    """A line that was cut short is dropped, and its row run again."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}, {}])
    result = tmp_path / "result.csv"
    record = result.with_suffix(".jsonl")
    base = ["validate", "-i", cases, "--target", cpu_server, "-o", result]
    assert run(*base).returncode == 0
    whole = steady(rows_of(result))
    record.write_bytes(record.read_bytes()[:-40])
    assert run(*base, "--resume").returncode == 0
    assert steady(rows_of(result)) == whole
    record.write_bytes(b"{}\n")
    done = run(*base, "--resume")
    assert done.returncode == 2
    assert "record" in done.stderr


def test_results_are_appended(cpu_server: str, tmp_path: Path, subject: Subject) -> None:
    """-a adds rows below a header that is the same, and refuses another."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}], subject)
    result = tmp_path / "result.csv"
    base = ["validate", "-i", cases, "--target", cpu_server, "-a", result]
    assert run(*base, "-t", "case_0").returncode == 0
    assert run(*base, "-t", "case_1").returncode == 0
    assert [row["testcase_name"] for row in rows_of(result)] == ["case_0", "case_1"]
    other = write_rows_of(tmp_path / "other.csv", [{"remark": "another column"}], subject)
    before = result.read_bytes()
    done = run("validate", "-i", other, "--target", cpu_server, "-a", result)
    assert done.returncode == 2
    assert "other columns" in done.stderr
    assert result.read_bytes() == before


def test_only_what_failed_runs_again(
    broken_server: str, cpu_server: str, tmp_path: Path, subject: Subject
) -> None:
    """--rerun takes an earlier result, and runs the rows that did not pass in it."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {"is_enabled": "False"}, {}], subject)
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    assert run("validate", "-i", cases, "--target", broken_server, "-o", first).returncode == 1
    words = ["--rerun", "precision_status", "-o", second, "--target", cpu_server]
    assert run("validate", "-i", first, *words).returncode == 0
    assert [row["testcase_name"] for row in rows_of(second)] == ["case_0", "case_2"]
    done = run("validate", "-i", second, "--rerun=precision_status", "--target", cpu_server)
    assert done.returncode == 0
    assert "every row passed" in done.stdout


@pytest.mark.parametrize("form", FORMATS)
def test_dumps_hold_what_was_judged(
    cpu_server: str, tmp_path: Path, form: str, subject: Subject
) -> None:
    """Inputs, outputs and goldens of each dtype can be loaded, and outputs equal their goldens."""
    names = ["bsnd_fp32_single_token"]
    wanted = {"fp16": None, "bf16": None}
    example = EXAMPLES[subject.name]
    for case in read_cases(example).cases:
        for word in wanted:
            if (
                word in case.name
                and wanted[word] is None
                and len(case.inputs) == len(subject.operator.inputs)
            ):
                wanted[word] = case.name
                names.append(case.name)
    folder = tmp_path / "tensors"
    words = ["--dump", "full", "--dump-format", form, "--dump-folder", folder]
    done = run("validate", "-i", example, "--target", cpu_server, "-t", ",".join(names), *words)
    assert done.returncode == 0, done.stderr
    for name in names:
        if form == "safetensors":
            assert {f"{name}_{phase}.safetensors" for phase in ("input", "output", "golden")} <= {
                path.name for path in folder.iterdir()
            }
            from safetensors.numpy import load_file

            outputs = load_file(folder / f"{name}_output.safetensors")
            goldens = load_file(folder / f"{name}_golden.safetensors")
            for output, array in outputs.items():
                assert array.tobytes() == goldens[output].tobytes()
            continue
        for index in range(len(subject.outputs)):
            output = folder / f"{name}_output_{index}.{form}"
            golden = folder / f"{name}_golden_{index}.{form}"
            assert output.stat().st_size > 0
            if form == "npy":
                assert np.array_equal(np.load(output), np.load(golden), equal_nan=True)
            elif form == "pt":
                import torch

                assert torch.equal(torch.load(output), torch.load(golden))
            else:
                assert output.read_bytes() == golden.read_bytes()
        assert all(
            (folder / f"{name}_input_{index}.{form}").exists()
            for index in range(len(subject.operator.inputs))
        )


def test_only_rows_that_fail_are_dumped(broken_server: str, tmp_path: Path) -> None:
    """--dump-on-fail writes everything of a failing row, and nothing of the others."""
    one_head = {
        "tensor_view_shapes": "((4,2,8),(4,1,8),(4,1,8),(4,1,8),None,None,(4,2,8),(4,1,8))",
        "tensor_dtypes": "('float32',)",
    }
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {**one_head, "output_tensor_indexes": "6"}])
    result = tmp_path / "result.csv"
    words = ["-o", result, "--dump-on-fail", "--dump-format", "npy"]
    done = run("validate", "-i", cases, "--target", broken_server, *words)
    assert done.returncode == 1
    files = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert files[0].startswith("case_0_fail_")
    assert len(files) == 4 + 2 + 2
    key = np.load(tmp_path / "dump" / "case_0_fail_output_1.npy")
    golden = np.load(tmp_path / "dump" / "case_0_fail_golden_1.npy")
    assert np.array_equal(key[:, :-1], golden[:, :-1])
    assert (key[:, -1] == -1).all()


def test_dumped_inputs_can_be_run_again(cpu_server: str, tmp_path: Path, subject: Subject) -> None:
    """Dumped inputs named by manual_tensor_binaries give the same digests as their recipe."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}], subject)
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    words = ["--target", cpu_server, "--dump", "in,golden", "--dump-folder", tmp_path / "dump"]
    assert run("validate", "-i", cases, "-o", first, *words).returncode == 0
    files = [f"'dump/case_0_input_{index}.bin'" for index in range(4)]
    absent = ["None"] * (4 if subject is GRAD else 0)
    goldens = [f"'dump/case_0_golden_{index}.bin'" for index in range(2)]
    again = write_rows_of(
        tmp_path / "again.csv",
        [
            {
                "manual_tensor_binaries": f"({','.join([*files, *absent])},)",
                "manual_golden_binaries": f"({','.join(goldens)},)",
            }
        ],
        subject,
    )
    words = ["--target", cpu_server, "--seed", "7", "-o", second]
    done = run("validate", "-i", again, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (before,), (after,) = rows_of(first), rows_of(second)
    digest = f"{subject.outputs[0]}_digest"
    assert before["input_digests"] == after["input_digests"]
    assert before[digest] == after[digest]
    golden = tmp_path / "dump" / "case_0_golden_0.bin"
    golden.write_bytes(b"\0\0\x80\x3f" + golden.read_bytes()[4:])
    done = run("validate", "-i", again, *words)
    assert done.returncode == 1
    assert "got" in done.stdout


def test_two_implementations_are_cross_checked(
    cpu_server: str, broken_server: str, tmp_path: Path, subject: Subject
) -> None:
    """Errors in proportion pass; a broken head against the reference does not."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}], subject)
    result = tmp_path / "result.csv"
    words = ["validate", "-i", cases, "-o", result, "--compare", "cross_check"]
    done = run(*words, "--target", cpu_server, "--against-target", cpu_server)
    assert done.returncode == 2
    assert "are the same" in done.stderr
    with servers.embedded() as second:
        done = run(*words, "--target", cpu_server, "--against-target", second.address)
    assert done.returncode == 0, done.stdout
    assert "judged by cross_check (level L1)" in done.stdout
    assert {row["edition"] for row in rows_of(result)} == {"L1"}
    more = ["--against-target", cpu_server, "--level", "L0"]
    done = run(*words, "--target", broken_server, *more)
    assert done.returncode == 1
    failed = rows_of(result)
    assert {row[f"{subject.outputs[1]}_status"] for row in failed} == {"FAIL"}
    assert {row[f"{subject.outputs[0]}_status"] for row in failed} == {"PASS"}


def test_without_a_golden_rows_are_executed(
    broken_server: str, tmp_path: Path, subject: Subject
) -> None:
    """--golden-mode Disable compares nothing, says so, and is exit 0."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}], subject)
    result = tmp_path / "result.csv"
    words = ["--golden-mode", "Disable", "-o", result]
    done = run("validate", "-i", cases, "--target", broken_server, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = rows_of(result)
    assert row["precision_status"] == "EXECUTED"
    assert row[f"{subject.outputs[0]}_status"] == "NOT COMPARED"
    assert len(row[f"{subject.outputs[0]}_digest"]) == 16


def test_a_file_is_checked_without_a_server(tmp_path: Path) -> None:
    """--validate counts the rows that are well formed and contacts nobody."""
    done = run("validate", "-i", EXAMPLES[GRAD.name], "--validate", "--target", "127.0.0.1:1")
    assert done.returncode == 0
    assert "21 rows are well formed" in done.stdout


def test_the_progress_file_and_plain_lines(cpu_server: str, tmp_path: Path) -> None:
    """--po holds the counts at the end; a terminal is not needed."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}, {}])
    progress = tmp_path / "progress.json"
    done = run("validate", "-i", cases, "--target", cpu_server, "--po", progress)
    assert done.returncode == 0
    found = json.loads(progress.read_text())
    assert (found["total"], found["done"], found["failed"]) == (3, 3, 0)
    assert found["finished"] is True


def test_reports_are_written_beside_the_run(
    broken_server: str, tmp_path: Path, subject: Subject
) -> None:
    """--junit and --html need no -o; the exit status is the run's."""
    cases = write_rows_of(tmp_path / "cases.csv", [{}, {}], subject)
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    words = ["--html", page, "--junit", junit]
    done = run("validate", "-i", cases, "--target", broken_server, *words)
    assert done.returncode == 1
    suite = ElementTree.parse(junit).getroot()  # noqa: S314 - our own file
    assert len(list(suite.iter("failure"))) == 2
    assert "case_1" in page.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cases.csv",
        "junit.xml",
        "page.html",
    ]


def test_both_ways_of_inputs_agree(cpu_server: str, tmp_path: Path, subject: Subject) -> None:
    """Inputs made here and sent give the verdicts and digests of those made on the server."""
    suite = write_suite(tmp_path / "suite.csv", 100, subject=subject)
    results = []
    for where in ("server", "client"):
        result = tmp_path / f"{where}.csv"
        words = ["--inputs", where, "-o", result, "--target", cpu_server, "--run", "1"]
        done = run("validate", "-i", suite, *words)
        assert done.returncode == 0, done.stderr
        results.append(steady(rows_of(result)))
    uploads = [{row.pop("upload_bytes") for row in rows} for rows in results]
    assert uploads[0] == {"0"}
    assert "0" not in uploads[1]
    assert results[0] == results[1]


def test_a_server_that_comes_back_loses_no_verdict(tmp_path: Path, subject: Subject) -> None:
    """Killed with -9 and started again while rows are under way, the run goes on by itself."""
    suite = write_suite(tmp_path / "suite.csv", 300, subject=subject)
    whole, result = tmp_path / "whole.csv", tmp_path / "result.csv"
    address = f"127.0.0.1:{servers.free_port()}"
    words = ["validate", "-i", suite, "--target", address, "--run", "1", "-o"]
    server = servers.TcpServer(tmp_path, address=address)
    try:
        assert run(*words, whole).returncode == 0
        with subprocess.Popen(
            command(*words, result), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            for kill in range(2):
                assert eventually(lambda kill=kill: len(rows_of(result)) > 20 + 60 * kill, 60)
                server.process.kill()
                server.process.wait()
                time.sleep(0.3)
                server = servers.TcpServer(tmp_path, address=address)
            said, errors = process.communicate(timeout=100)
        assert process.returncode == 0, said + errors
    finally:
        server.stop()
    assert steady(rows_of(result)) == steady(rows_of(whole))


def test_a_workbook_gives_the_same_result(
    cpu_server: str, tmp_path: Path, subject: Subject
) -> None:
    """XLSX and CSV of the same rows: the same cells, verdicts and digests."""
    suite = write_suite(tmp_path / "suite.csv", 40, subject=subject)
    book = workbook_of(suite, tmp_path / "suite.xlsx", "cases", "notes")
    results = []
    for case_file, sheet in ((suite, []), (book, ["--sheet", "cases"])):
        result = tmp_path / f"{case_file.suffix[1:]}.result.csv"
        words = ["-i", case_file, *sheet, "-o", result, "--target", cpu_server, "--run", "1"]
        done = run("validate", *words)
        assert done.returncode == 0, done.stderr
        results.append(steady(rows_of(result)))
    assert results[0] == results[1]
