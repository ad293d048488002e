"""Servers for tests: embedded, or started by hand on a TCP port from a TOML file."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import opferry
from opferry.embedded import EmbeddedServer, embedded_server
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]

PYTHONPATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
"""What lets a server import the tests' backends."""

BACKENDS = "tests.support.backends"

START_S = 120.0
"""How long a server may take to start on a machine that does other things too."""

EARLY_STREAMS = {"unary_bytes": 256 * 1024}
"""What tests' servers allow unless told otherwise: so calls of a megabyte are streams, as those of
several megabytes are with the server's own default, and tests of streams need not be large."""


@contextlib.contextmanager
def embedded(
    backend: str = "cpu",
    workers: int = 1,
    limits: Mapping[str, int] | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedServer]:
    """Run an embedded server that can import the tests' backends by class name."""
    path = f"{BACKENDS}:{backend}" if backend[0].isupper() else backend
    with embedded_server(
        backend=path,
        workers=workers,
        limits={**EARLY_STREAMS, **(limits or {})},
        options=options,
        environment={"PYTHONPATH": PYTHONPATH},
    ) as server:
        yield server


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TcpServer:
    """A server started as its operator would, from a TOML file.

    `credentials` are the arguments of `opferry.connect` with which it is found to serve.
    """

    def __init__(
        self,
        folder: Path,
        backend: str = "cpu",
        workers: int = 1,
        limits: Mapping[str, int] | None = None,
        lines: tuple[str, ...] = (),
        address: str = "",
        credentials: Mapping[str, Any] | None = None,
    ) -> None:
        self.address = address or f"127.0.0.1:{free_port()}"
        path = f"{BACKENDS}:{backend}" if backend[0].isupper() else backend
        config = folder / "server.toml"
        config.write_text(
            "\n".join(
                [
                    f'address = "{self.address}"',
                    f'backend = "{path}"',
                    f"workers = {workers}",
                    *lines,
                    "[limits]",
                    *(
                        f"{name} = {value}"
                        for name, value in {**EARLY_STREAMS, **(limits or {})}.items()
                    ),
                ]
            )
        )
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "opferry_server", "--config", str(config)],
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                stdout=log,
                stderr=log,
            )
        once = opferry.RetryConfig(attempts=1)
        with opferry.connect(self.address, retry=once, **(credentials or {})) as client:
            assert eventually(lambda: self._serves(client), START_S), self.log.read_text()

    @property
    def pid(self) -> int:
        """The front's process id."""
        return self.process.pid

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.process.wait(30)

    def _serves(self, client: opferry.Client) -> bool:
        try:
            return client.server_info(timeout=5).serving
        except opferry.OpFerryError:
            return False


@contextlib.contextmanager
def tcp(
    folder: Path,
    backend: str = "cpu",
    workers: int = 1,
    limits: Mapping[str, int] | None = None,
    lines: tuple[str, ...] = (),
    address: str = "",
    credentials: Mapping[str, Any] | None = None,
) -> Iterator[TcpServer]:
    """Run a `TcpServer` for the length of a `with` block."""
    server = TcpServer(folder, backend, workers, limits, lines, address, credentials)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
