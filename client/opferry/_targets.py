"""What a target names: one server, or several over which calls are spread."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from opferry.core.addresses import is_loopback

ALLOWED = "host:port, host:port,host:port or dns:///host:port"
"""What a target may look like, for texts."""

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:/,\s]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Target:
    """A target, taken apart."""

    text: str
    """As it was given."""
    addresses: tuple[str, ...]
    """The "host:port" that it names; of a name with many servers, that name."""
    balanced: bool
    """Whether calls are spread over several servers."""

    @property
    def is_loopback(self) -> bool:
        """Whether nothing that is sent leaves this host."""
        return all(is_loopback(address) for address in self.addresses)


def parse_target(text: str) -> Target | None:
    """Return a target; None: it is none."""
    if text.startswith("unix:"):
        return Target(text, (text,), balanced=False)
    if text.startswith("dns:"):
        address = text.removeprefix("dns:").rpartition("/")[2]
        if not text.startswith(("dns://", f"dns:{address}")) or not _is_address(address):
            return None
        return Target(text, (address,), balanced=True)
    addresses = tuple(part.strip() for part in text.split(","))
    if not all(_is_address(address) for address in addresses):
        return None
    return Target(text, addresses, balanced=len(addresses) > 1)


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and int(found.group(2)) < 65536


def channel_uri(target: Target) -> str:
    """Return a target as gRPC has it; the names of a list are looked up here, once.

    Raises:
        OSError: if a name of a list has no address.
    """
    if not target.balanced or target.text.startswith("dns:"):
        return target.text
    found = [_endpoint(address) for address in target.addresses]
    if all(":" not in host for host, _ in found):
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in found)
    # a list is of one family: the others are written in it
    mapped = (host if ":" in host else f"::ffff:{host}" for host, _ in found)
    return "ipv6:" + ",".join(
        f"[{host}]:{port}" for host, (_, port) in zip(mapped, found, strict=True)
    )


def common_host(target: Target) -> str:
    """Return the host that all addresses of a target share, "" if they do not."""
    hosts = {address.rpartition(":")[0].strip("[]") for address in target.addresses}
    return hosts.pop() if len(hosts) == 1 else ""


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    entries = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return str(entries[0][4][0]), int(port)
