"""A server that leases memory, and a client that finds none leased when its test begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import opferry
from tests.support import servers
from tests.support.leasing import NOTHING_IDLE, open_arenas
from tests.support.processes import eventually


@pytest.fixture(scope="module")
def server() -> Iterator[servers.EmbeddedServer]:
    with servers.embedded("SleepBackend", limits=NOTHING_IDLE) as running:
        yield running


@pytest.fixture
def client(server: servers.EmbeddedServer) -> Iterator[opferry.Client]:
    assert eventually(lambda: open_arenas(server.pid) == 0), "the test before has ended its leases"
    with opferry.connect(server.address, timeout=60) as connected:
        yield connected
