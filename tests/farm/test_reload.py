"""SIGHUP: changed tenants are in force at once, a wrong file changes nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import errors
from tests.support import servers
from tests.support.calls import tnd
from tests.support.processes import eventually

ONCE = opferry.RetryConfig(attempts=1)


def entries(server: servers.TcpServer, event: str) -> list[dict[str, Any]]:
    lines = server.log.read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in found if entry.get("event") == event]


def test_a_changed_configuration_is_in_force_after_sighup(tmp_path: Path) -> None:
    with (
        servers.tcp(tmp_path, lines=("device_lease_s = 60",)) as server,
        opferry.connect(server.address, retry=ONCE) as client,
    ):
        config = tmp_path / "server.toml"
        before = config.read_text()
        client.apply_rotary_pos_emb_grad(**tnd())
        table = "\n[tenants.anonymous]\ntensor_bytes = 16\n"
        config.write_text(
            before.replace("device_lease_s = 60", "device_lease_s = 5").replace(
                "workers = 1", "workers = 2"
            )
            + table
        )
        os.kill(server.pid, signal.SIGHUP)
        assert eventually(lambda: bool(entries(server, "read again")))
        (told,) = entries(server, "read again")
        assert set(told["changed"]) == {"tenants", "device_lease_s"}
        assert told["after_restart"] == ["workers"]
        with pytest.raises(errors.TooLargeError, match="for tenant anonymous"):
            client.apply_rotary_pos_emb_grad(**tnd())
        with pytest.raises(errors.RequestError, match="1 to 5000 ms"), client.lease_device(6):
            pass
        config.write_text(before + "\n[tenants.anonymous]\nweight = -1\n")
        os.kill(server.pid, signal.SIGHUP)
        assert eventually(lambda: bool(entries(server, "not read")))
        assert "tenants.anonymous.weight is -1" in entries(server, "not read")[0]["why"]
        with pytest.raises(errors.TooLargeError):
            client.apply_rotary_pos_emb_grad(**tnd())
        config.write_text(before)
        os.kill(server.pid, signal.SIGHUP)
        assert eventually(lambda: len(entries(server, "read again")) == 2)
        client.apply_rotary_pos_emb_grad(**tnd())
        assert server.stop() == 0
