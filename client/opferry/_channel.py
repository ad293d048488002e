"""Channel options and proxies: pure, for both clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from opferry.core.addresses import is_loopback
from opferry.core.limits import MESSAGE_BYTES

KEEPALIVE_MS = 30_000
"""The period of pings while a call is open: longer than what servers take for an attack."""

KEEPALIVE_TIMEOUT_MS = 20_000
"""A connection that does not answer a ping for so long is given up."""

FIRST_RECONNECT_MS = 100
LONGEST_RECONNECT_MS = 2_000
"""How long a lost connection waits before the next attempt: a restarted server is found soon."""

CONNECT_TIMEOUT_MS = 10_000
"""How long one attempt to connect may take."""

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPT_VARIABLES = ("no_grpc_proxy", "no_proxy")


def channel_options(target: str) -> list[tuple[str, int]]:
    """Return the options of a channel to *target*."""
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
        # in spite of its name, the time that one attempt to connect may take
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    ]
    if is_loopback(target):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def proxy_for(target: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the HTTP proxy that gRPC uses for *target*, and the variable it is from, or None.

    gRPC's own rules: the first of grpc_proxy, https_proxy and http_proxy, unless no_grpc_proxy or
    else no_proxy names the host or a domain that it ends in. A password is left out.
    """
    variables = os.environ if environment is None else environment
    if is_loopback(target) or target.startswith("unix:"):
        return None
    variable = next((name for name in _PROXY_VARIABLES if variables.get(name)), None)
    if variable is None:
        return None
    host = target.rpartition(":")[0].rpartition("/")[2].strip("[]")
    exempt = next((variables[name] for name in _EXEMPT_VARIABLES if variables.get(name)), "")
    for entry in exempt.split(","):
        if entry.strip() and host.endswith(entry.strip()):
            return None
    parts = urlsplit(variables[variable])
    where = (parts.hostname or "?") + ("" if parts.port is None else f":{parts.port}")
    return f"{where} (from {variable})"
