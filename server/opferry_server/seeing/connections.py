"""How many connections a listening address has, by what the kernel tells: gRPC does not count."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def connection_count(address: str) -> int:
    """Return how many connections are open to "host:port", or "unix:path", of this host."""
    if address.startswith("unix:"):
        return _unix_count(address.removeprefix("unix:"))
    port = int(address.rpartition(":")[2])
    # the address on this side, that on the other, and 01: established
    line = re.compile(rb"^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 01 " % port, re.MULTILINE)
    count = 0
    for table in _TABLES:
        with suppress(OSError):  # a host may have no IPv6
            count += len(line.findall(Path(table).read_bytes()))
    return count


def _unix_count(path: str) -> int:
    # type 0001, state 03: connected; clients' ends have no path
    line = re.compile(rb" 0001 03 +\d+ %s$" % re.escape(path.encode()), re.MULTILINE)
    with suppress(OSError):
        return len(line.findall(Path("/proc/self/net/unix").read_bytes()))
    return 0
