"""Each server of a target by itself: for what only that server knows, its queue for instance."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from opferry import errors
from opferry._targets import parse_target
from opferry.client import Client
from opferry.config import ClientConfig

THREAD_COUNT = 16
"""How many servers are asked at a time."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Answer(Generic[_T]):
    """What one server of a target said."""

    target: str
    """The server's own address."""
    value: _T | None = None
    """What it said; None if it did not answer."""
    error: errors.OpFerryError | None = None
    """Why it did not."""


def each_server(config: ClientConfig, addresses: Iterable[str] = ()) -> list[ClientConfig]:
    """Return the configuration of a client of each server.

    Args:
        config: a client's configuration, whose target may be a name that stands for many servers.
        addresses: "host:port" of the servers, where they are known; else the target's own.

    Raises:
        TransportError: if a name cannot be resolved.
    """
    parsed = parse_target(config.target)
    named = tuple(addresses) or ((config.target,) if parsed is None else parsed.addresses)
    found: dict[str, ClientConfig] = {}
    for address in named:
        for each, name in _resolved(address):
            tls = config.tls
            if tls is not None and not tls.server_name and name:
                tls = replace(tls, server_name=name)
            found.setdefault(each, replace(config, target=each, tls=tls))
    return list(found.values())


def ask_each(configs: Iterable[ClientConfig], ask: Callable[[Client], _T]) -> list[Answer[_T]]:
    """Ask servers, all at the same time, and return what each said."""

    def asked(config: ClientConfig) -> Answer[_T]:
        try:
            with Client(config) as client:
                return Answer(config.target, ask(client))
        except errors.OpFerryError as error:
            return Answer(config.target, error=error)

    with ThreadPoolExecutor(THREAD_COUNT) as pool:
        return list(pool.map(asked, configs))


def _resolved(address: str) -> list[tuple[str, str]]:
    """Return the addresses that an address stands for, each with the name that it was found by."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or host == "localhost":
        return [(address, "")]
    try:
        entries = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise errors.TransportError(f"{host} has no address: {error}") from error
    hosts = list(dict.fromkeys(entry[4][0] for entry in entries))
    if len(hosts) == 1:
        return [(address, "")]
    return [(f"[{each}]:{port}" if ":" in str(each) else f"{each}:{port}", host) for each in hosts]
