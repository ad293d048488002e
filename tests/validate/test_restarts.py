"""A server that is killed again and again in mid-run: the result is that of an undisturbed run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import opferry
from tests.support import servers
from tests.support.processes import eventually
from tests.support.suite_runs import command, rows_of, run, steady, write_suite


def is_busy(address: str) -> bool:
    """Return whether the server runs an operator just now."""
    with opferry.connect(address, retry=opferry.RetryConfig(attempts=1)) as client:
        return any(worker.running_count for worker in client.server_info(timeout=10).workers)


def kill_while_busy(server: servers.TcpServer, result: Path, least: int) -> None:
    """Kill a server with -9 at a moment at which cases are under way, past some rows."""
    assert eventually(lambda: len(rows_of(result)) >= least, 300)
    assert eventually(lambda: is_busy(server.address), 60), "no case was under way"
    server.process.kill()
    server.process.wait()


@pytest.mark.full
def test_five_kills_leave_no_trace(tmp_path: Path) -> None:
    """2,000 rows, five kills; three are waited out, two end the run and --resume goes on."""
    suite = write_suite(tmp_path / "suite.csv", 2000, largest_bytes=2**20)
    whole, result = tmp_path / "whole.csv", tmp_path / "result.csv"
    address = f"127.0.0.1:{servers.free_port()}"
    words = ["validate", "-i", suite, "--target", address, "--run", "1", "--reconnect", "5", "-o"]
    server = servers.TcpServer(tmp_path, address=address)
    try:
        assert run(*words, whole).returncode == 0
        with subprocess.Popen(
            command(*words, result), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            for least in (200, 500, 800):
                kill_while_busy(server, result, least)
                server = servers.TcpServer(tmp_path, address=address)
            kill_while_busy(server, result, 1100)
            assert process.wait(60) == 3
        server = servers.TcpServer(tmp_path, address=address)
        with subprocess.Popen(
            command(*words, result, "--resume"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            kill_while_busy(server, result, 1400)
            assert process.wait(60) == 3
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
