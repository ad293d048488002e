"""Five thousand connections that do nothing: the client that is there is served all the same."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opferry
from tests.security.conftest import ONCE, SecureServer
from tests.support import servers
from tests.support.processes import rss_anon_bytes

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

COUNT = 5000
ALLOWED = 4500
DEADLINE_S = 10.0
CONNECTION_BYTES = 100 * 1024


@contextlib.contextmanager
def crowd(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program that opens the connections."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.security.crowd", str(COUNT), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=servers.ROOT,
    ) as program:
        try:
            yield program
        finally:
            assert program.stdin is not None
            program.stdin.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "tls"])
def test_five_thousand_idle_connections(
    tmp_path: Path, encrypted: bool, call: Callable[[opferry.Client], Any]
) -> None:
    """Calls before, while and after they come end in time; those beyond the limit are closed."""
    secure = SecureServer(tmp_path)
    lines = [*(secure.lines if encrypted else secure.tokens.lines)]
    lines += ["[connections]", f"count = {ALLOWED}", "idle_s = 500", "handshake_s = 60"]
    given: dict[str, Any] = {"token": secure.vision}
    if encrypted:
        given["tls"] = secure.tls
    with (
        servers.tcp(tmp_path, lines=tuple(lines), credentials=given) as server,
        opferry.connect(server.address, retry=ONCE, timeout=DEADLINE_S, **given) as client,
    ):
        for _ in range(20):
            call(client)
        before = rss_anon_bytes(server.pid)
        words = (server.address, *([str(secure.authority.file)] if encrypted else []))
        with crowd(*words) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            while not select.select([program.stdout], [], [], 0.1)[0]:
                call(client)
            open_count = int(program.stdout.readline())
            call(client)
            grown = rss_anon_bytes(server.pid) - before
            program.stdin.write("\n")
            program.stdin.flush()
            assert int(program.stdout.readline()) == open_count
        print(f"{open_count} connections, {grown / open_count / 1024:.1f} KiB each")
        # the client's own is one of them, and the gone connection of the start may be another
        assert ALLOWED - 3 <= open_count < ALLOWED
        assert grown < open_count * CONNECTION_BYTES
        for _ in range(20):
            call(client)
