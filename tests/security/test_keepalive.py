"""Pings on both sides: a long call lives, a peer that is gone is found out.

A call of six minutes, with the periods that both sides have by default, is part of `make soak`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.config import KeepaliveConfig
from tests.security.conftest import ONCE
from tests.support import servers

OFTEN = KeepaliveConfig(period_s=0.5, timeout_s=2.0)


def _sleep(client: opferry.Client, seconds: float, tokens: int = 2) -> Any:
    """Run an operator that takes so long and moves no data meanwhile."""
    ones = np.ones((tokens, 1, 8), np.float32)
    return client.apply_rotary_pos_emb_grad(ones, ones, np.full_like(ones, seconds), ones, layout=4)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.TcpServer]:
    """A server that takes pings each quarter of a second."""
    lines = ("[connections]", "least_ping_s = 0.25", "ping_s = 1")
    with servers.tcp(tmp_path_factory.mktemp("patient"), "SleepBackend", lines=lines) as server:
        yield server


@pytest.mark.full
@pytest.mark.parametrize("tokens", [2, 16_384], ids=["unary", "stream"])
def test_a_call_of_many_ping_periods_lives(patient: servers.TcpServer, tokens: int) -> None:
    """A dozen periods without data, on both sides: nobody takes it for an attack."""
    given = {"keepalive": OFTEN, "retry": ONCE, "timeout": 60, "shared_memory": False}
    with opferry.connect(patient.address, **given) as client:
        _sleep(client, 6.0, tokens)
        _sleep(client, 0.0)


@pytest.mark.full
def test_pings_that_are_not_matched_end_the_connection(tmp_path: Path) -> None:
    """So the pings are sent indeed, and the test above would notice."""
    with (
        servers.tcp(tmp_path, "SleepBackend") as server,
        opferry.connect(server.address, keepalive=OFTEN, retry=ONCE, timeout=60) as client,
        pytest.raises(errors.TransportError, match="Too many pings"),
    ):
        _sleep(client, 30.0)


@pytest.mark.full
def test_a_server_that_stands_still_is_found_out(tmp_path: Path) -> None:
    """Its kernel still takes bytes; it answers no ping, and the call ends before its time."""
    with (
        servers.tcp(tmp_path, "SleepBackend") as server,
        opferry.connect(server.address, keepalive=OFTEN, retry=ONCE, timeout=100) as client,
    ):
        _sleep(client, 0.0)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(errors.TransportError):
                client.server_info()
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_the_variable_sets_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds; what is no number is refused."""
    monkeypatch.setenv("OPFERRY_KEEPALIVE_S", "2.5")
    with opferry.connect("127.0.0.1:1") as client:
        assert client.config.keepalive.period_s == 2.5
    for wrong in ("soon", "0", "-1", "nan"):
        monkeypatch.setenv("OPFERRY_KEEPALIVE_S", wrong)
        with pytest.raises(errors.RequestError, match="OPFERRY_KEEPALIVE_S is"):
            opferry.connect("127.0.0.1:1")
