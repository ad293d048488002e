"""A farm: servers that come and go, and an Envoy in front of them."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import opferry
from tests.farm.access import FarmAccess
from tests.support import servers
from tests.support.envoy import Envoy
from tests.support.processes import eventually
from tests.support.servers import TcpServer, free_port

SPARED = {"OK", "SHUTTING_DOWN"}
"""What a server that is drained says to those it has let in, and to the others."""

LEFT = {("ExecuteMany", "CANCELLED"), ("Validate", "CANCELLED")}
"""Whose client has left, for another server, when the first of many calls was refused."""


class Farm:
    """Servers behind an Envoy."""

    def __init__(self, folder: Path, count: int, *, tls: bool = False, **options: Any) -> None:
        """Start them.

        Args:
            folder: an empty folder.
            count: how many servers.
            tls: whether clients need tokens and TLS, and Envoy and the servers certificates.
            options: for each `TcpServer`.
        """
        self.access = FarmAccess(folder) if tls else None
        self._folder, self._options, self._numbers = folder, options, itertools.count(1)
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            self.servers = list(pool.map(self._start, addresses))
        self.envoy = Envoy(
            folder / "envoy",
            [server.address for server in self.servers],
            certificates=None if self.access is None else self.access.folder,
        )
        assert self.all_healthy(), self.envoy.servers()

    def close(self) -> None:
        """End everything."""
        self.envoy.stop()
        for server in self.servers:
            if server.process.poll() is None:
                server.stop()

    def client(self, number: int = 0, **options: Any) -> opferry.Client:
        """Return a client of Envoy's, as one of the tenants."""
        credentials = {} if self.access is None else self.access.of(number)
        return opferry.connect(self.envoy.address, **credentials, **options)

    def all_healthy(self) -> bool:
        """Return whether Envoy comes to send to all servers."""
        return eventually(
            lambda: self.envoy.healthy() == {server.address for server in self.servers}, 30
        )

    def busy(self) -> TcpServer:
        """Return the server that has most requests from Envoy now."""
        active = self.active()
        return max(self.servers, key=lambda server: active.get(server.address, 0))

    def active(self) -> dict[str, int]:
        """Return how many requests Envoy has at each server, by address."""
        found: dict[str, int] = {}
        for line in self.envoy.admin("/clusters").splitlines():
            cluster, _, rest = line.partition("::")
            address, _, figure = rest.partition("::rq_active::")
            if cluster == "servers" and figure:
                found[address] = int(figure)
        return found

    def kill(self, server: TcpServer) -> None:
        """End a server's front by SIGKILL."""
        server.process.kill()
        server.process.wait()

    def drain(self, server: TcpServer) -> None:
        """Have a server end by itself, and check that it lost nothing."""
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.log.read_text()
        told = outcomes(server.log)
        lost = [pair for pair in told if pair[1] not in SPARED and pair not in LEFT]
        assert lost == [], told

    def start_again(self, server: TcpServer) -> None:
        """Put a new server at the address of one that has ended."""
        self.servers[self.servers.index(server)] = self._start(server.address)
        assert self.all_healthy(), self.envoy.servers()

    def add(self) -> TcpServer:
        """Add a server, and tell Envoy of it."""
        server = self._start(f"127.0.0.1:{free_port()}")
        self.servers.append(server)
        self._tell_envoy()
        assert self.all_healthy(), self.envoy.servers()
        return server

    def remove(self, server: TcpServer) -> None:
        """Take a server out of Envoy's list, and then drain it."""
        self.servers.remove(server)
        self._tell_envoy()
        self.drain(server)

    def _tell_envoy(self) -> None:
        self.envoy.set_servers([server.address for server in self.servers])

    def _start(self, address: str) -> TcpServer:
        number = next(self._numbers)
        folder = self._folder / f"server-{number}"
        folder.mkdir()
        # as in deploy/: who shares memory with one server may be sent to another
        lines: tuple[str, ...] = ("shm = false", f'server_id = "s{number}"')
        credentials: dict[str, Any] = {}
        if self.access is not None:
            lines += self.access.server_lines()
            credentials = self.access.direct()
        return servers.TcpServer(
            folder, lines=lines, address=address, credentials=credentials, **self._options
        )


def outcomes(log: Path) -> Mapping[tuple[str, str], int]:
    """Return how often a server's log has each method with each outcome."""
    found: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            if "outcome" in told:
                found[told["method"], told["outcome"]] += 1
    return found
