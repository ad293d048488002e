"""A real server for users' own tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from opferry.embedded import embedded_server

__all__ = ["running_server"]


@contextlib.contextmanager
def running_server(
    backend: str = "cpu",
    workers: int = 1,
    *,
    limits: Mapping[str, int] | None = None,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a server on a free port for the length of a `with` block; yields "127.0.0.1:port".

    The server is a process of its own, started without multiprocessing: this works from a script
    without a main guard, from a notebook and from pytest alike.

    Args:
        backend: "cpu", another backend's name, or an import path "module:Class" that the server
            can import.
        workers: the number of worker processes.
        limits: limits by the names of `opferry.core.limits.LimitsConfig`.
        options: other options of opferry-server by name, for example {"log-level": "info"}; the
            value of a switch is empty.
        environment: variables for the server beside this process's own.

    Raises:
        opferry.errors.ServerError: if the server does not start.
    """
    with embedded_server(
        backend=backend, workers=workers, limits=limits, options=options, environment=environment
    ) as server:
        yield server.address
