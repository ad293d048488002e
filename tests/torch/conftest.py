"""A watched client, chosen for every test of opferry.torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import opferry.torch
from tests.torch.watching import WatchedClient


@pytest.fixture
def watched(cpu_server: str) -> Iterator[WatchedClient]:
    """A client of the CPU server that notes its calls, the process's choice."""
    with WatchedClient.connect(cpu_server) as client:
        opferry.torch.use(client)
        yield client
    opferry.torch.use(None)
