"""The audit log: who ran what, also after its file was moved away."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import errors
from opferry_server.seeing.audit import AuditLog
from tests.support import servers
from tests.support.admin import Admin
from tests.support.calls import tnd
from tests.support.processes import eventually
from tests.support.suites import OPERATOR, TND

ONCE = opferry.RetryConfig(attempts=1)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of_operators(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines(path) if line["operator"]]


def streams(path: Path) -> list[dict[str, Any]]:
    return [
        line
        for line in lines(path)
        if line["method"] == "ExecuteMany" and line["event"] == "request"
    ]


def test_each_request_has_a_line(tmp_path: Path) -> None:
    """Good ones and bad ones, calls of a stream, before and after the file is moved."""
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    inputs = {name: value for name, value in tnd().items() if name != "layout"}
    with (
        servers.tcp(tmp_path, lines=(f'audit_log = "{path}"', 'server_id = "lab"')) as server,
        opferry.connect(server.address, retry=ONCE) as client,
    ):
        result = client.apply_rotary_pos_emb_grad(**tnd())
        with pytest.raises(errors.OpFerryError):
            client.apply_rotary_pos_emb_grad(**tnd(), operator_package="absent")
        list(client.execute_many(OPERATOR, [inputs] * 2, attributes=TND))
        assert eventually(lambda: len(of_operators(path)) == 4)
        good, bad, *many = of_operators(path)
        sizes = sum(array.nbytes for array in inputs.values())
        assert good["request_id"] == result.execution.request_id
        assert good["request_id"].startswith("lab-")
        assert (good["tenant"], good["role"], good["server_id"]) == ("anonymous", "user", "lab")
        assert (good["method"], good["operator_package"]) == ("ApplyRotaryPosEmbGrad", "built-in")
        assert (good["upload_bytes"], good["device"]) == (sizes, "cpu:0")
        assert (good["outcome"], good["status"], good["stream_id"]) == ("OK", "OK", "")
        assert good["peer"].startswith("ipv4:127.0.0.1:")
        assert (bad["outcome"], bad["status"]) == (
            "OPERATOR_PACKAGE_UNKNOWN",
            "FAILED_PRECONDITION",
        )
        # the client has had its last result before the stream has ended
        assert eventually(lambda: bool(streams(path)))
        (stream,) = streams(path)
        assert [line["stream_id"] for line in many] == [stream["request_id"]] * 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.rename(moved)
        os.kill(server.pid, signal.SIGHUP)
        client.apply_rotary_pos_emb_grad(**tnd())
        assert eventually(lambda: len(of_operators(path)) == 1)
        assert len(of_operators(moved)) == 4
        client.apply_rotary_pos_emb_grad(**tnd())
        assert server.stop() == 0
    assert len(of_operators(path)) == 2, "the last line is written before the end"


def test_what_cannot_be_written_is_counted() -> None:
    """A full disk costs no request; Prometheus is told."""
    if not Path("/dev/full").exists():
        pytest.skip("the host has no /dev/full")
    admin = Admin()
    with (
        servers.embedded(options={**admin.options, "audit-log": "/dev/full"}) as server,
        opferry.connect(server.address) as client,
    ):
        client.apply_rotary_pos_emb_grad(**tnd())
        assert eventually(lambda: admin.value("opferry_audit_lines_lost_total") > 0)
        client.apply_rotary_pos_emb_grad(**tnd())


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    """It says so at once, and not when the first line is lost."""
    with pytest.raises(FileNotFoundError):
        AuditLog(str(tmp_path / "absent" / "audit.jsonl"), "lab")
