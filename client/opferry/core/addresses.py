"""Addresses "host:port", as targets and as what a server listens on."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Args:
        address: "host:port", "[ipv6]:port" or "unix:path"; a name other than localhost counts as
            reachable by others.
    """
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
