"""A server that is killed again and again in mid-run: the result is that of an undisturbed run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opferry.core.limits import LimitsConfig
from tests.support import servers
from tests.support.calls import Subject
from tests.support.processes import eventually
from tests.support.suite_runs import command, rows_of, run, steady, write_suite

ROWS = 2000


def passed(result: Path) -> int:
    """Return how many rows have passed, by the run's record."""
    record = result.with_suffix(".jsonl")
    return record.read_bytes().count(b'"precision_status":"PASS"') if record.exists() else 0


def kill_while_busy(
    server: servers.TcpServer, client: subprocess.Popen[bytes], result: Path, least: int
) -> None:
    """Kill a server with -9 while cases are under way, past some rows of the result.

    A client that still runs, and has more rows to come than may be under way, has as many under way
    as may be: it sends the next case as soon as it has a verdict.
    """
    assert eventually(lambda: passed(result) >= least, 300)
    server.process.kill()
    done = passed(result)
    assert client.poll() is None
    assert done < ROWS - LimitsConfig().case_count, f"{done} rows were done"
    server.process.wait()


@pytest.mark.full
def test_five_kills_leave_no_trace(tmp_path: Path, subject: Subject) -> None:
    """2,000 rows, five kills; three are waited out, two end the run and --resume goes on."""
    suite = write_suite(tmp_path / "suite.csv", ROWS, largest_bytes=2**20, subject=subject)
    whole, result = tmp_path / "whole.csv", tmp_path / "result.csv"
    address = f"127.0.0.1:{servers.free_port()}"
    words = ["validate", "-i", suite, "--target", address, "--run", "1", "--reconnect", "20", "-o"]
    server = servers.TcpServer(tmp_path, address=address)
    try:
        assert run(*words, whole).returncode == 0
        with subprocess.Popen(
            command(*words, result), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            for least in (200, 500, 800):
                kill_while_busy(server, process, result, least)
                server = servers.TcpServer(tmp_path, address=address)
            kill_while_busy(server, process, result, 1100)
            assert process.wait(120) == 3
        server = servers.TcpServer(tmp_path, address=address)
        with subprocess.Popen(
            command(*words, result, "--resume"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            kill_while_busy(server, process, result, 1400)
            assert process.wait(120) == 3
        server = servers.TcpServer(tmp_path, address=address)
        done = run(*words, result, "--resume")
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        server.stop()
    rows = rows_of(result)
    assert [row["testcase_name"] for row in rows] == [
        row["testcase_name"] for row in rows_of(suite)
    ]
    assert steady(rows) == steady(rows_of(whole))
