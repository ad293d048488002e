"""Which addresses can be reached from this machine alone."""

from __future__ import annotations

import pytest

from opferry.core.addresses import is_loopback


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:50051", "127.8.9.10:1", "[::1]:50051", "localhost:50051", "unix:/run/opferry"],
)
def test_loopback(address: str) -> None:
    """Loopback addresses in both families, localhost, and sockets in the file system."""
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:50051",
        "[::]:50051",
        "10.0.0.1:50051",
        "example.com:50051",
        "localhost.example.com:50051",
        "127.0.0.1.example.com:50051",
        "127.0.0.1",
        ":50051",
        "",
    ],
)
def test_everything_else_counts_as_reachable(address: str) -> None:
    """Other addresses, all interfaces, names and what is no address are not loopback."""
    assert not is_loopback(address)
