"""Channel targets, options and credentials, and proxies: pure, for both clients."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from opferry import errors, wire
from opferry._forks import grpc
from opferry._targets import Target, channel_uri, common_host, parse_target
from opferry._token import TokenError
from opferry._tracing import trace_headers
from opferry.config import ClientConfig, TlsConfig
from opferry.core.addresses import is_loopback
from opferry.core.limits import MESSAGE_BYTES
from opferry.core.problems import StatusCode

FIRST_RECONNECT_MS = 100
LONGEST_RECONNECT_MS = 2_000
"""How long a lost connection waits before the next attempt: a restarted server is found soon."""

CONNECT_TIMEOUT_MS = 10_000
"""How long one attempt to connect may take."""

_BALANCED = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        # a server that ends, or has no device that works, says so to those who watch
        "healthCheckConfig": {"serviceName": wire.SERVICE_NAME},
    }
)
"""How calls are spread over several servers."""

LOOK_UP_AGAIN_MS = 5_000
"""How soon a name is looked up again, when one of its servers has gone or ended a connection."""

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPT_VARIABLES = ("no_grpc_proxy", "no_proxy")


def channel_options(config: ClientConfig) -> list[tuple[str, int | str]]:
    """Return the options of a client's channel."""
    target = target_of(config)
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", round(config.keepalive.period_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive.timeout_s * 1000)),
        # the other one alone is not kept while a ping of another kind is on its way
        ("grpc.http2.ping_timeout_ms", round(config.keepalive.timeout_s * 1000)),
        # a call whose operator runs for minutes has no data, and is pinged all the same
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
        # in spite of its name, the time that one attempt to connect may take
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", LONGEST_RECONNECT_MS),
    ]
    if target.is_loopback or len(target.addresses) > 1:
        # a proxy cannot be told of a list
        options.append(("grpc.enable_http_proxy", 0))
    name = "" if config.tls is None else config.tls.server_name
    if len(target.addresses) > 1:
        name = name or common_host(target)
        options.append(("grpc.default_authority", name or target.addresses[0]))
    if config.tls is not None and name:
        options.append(("grpc.ssl_target_name_override", name))
    if target.balanced:
        options += [
            ("grpc.service_config", _BALANCED),
            # what a name's TXT records may say
            ("grpc.service_config_disable_resolution", 1),
            ("grpc.dns_min_time_between_resolutions_ms", LOOK_UP_AGAIN_MS),
        ]
    return options


def channel_target(config: ClientConfig) -> str:
    """Return where a client's channel goes, as gRPC has it.

    Raises:
        TransportError: if a name of a list has no address.
        RequestError: if the servers of a list are to have certificates, and no name is theirs.
    """
    target = target_of(config)
    tls = config.tls
    if (
        tls is not None
        and len(target.addresses) > 1
        and not (tls.server_name or common_host(target))
    ):
        raise errors.RequestError(
            "tls: the servers of a list have one name in their certificates; give server_name",
            argument="tls",
        )
    try:
        return channel_uri(target)
    except OSError as error:
        raise errors.TransportError(
            f"{config.target}: a name has no address: {error}",
            status=StatusCode.UNAVAILABLE,
            may_retry=True,
        ) from error


def target_of(config: ClientConfig) -> Target:
    """Return a client's target, which was looked at when its configuration was made."""
    target = parse_target(config.target)
    return Target(config.target, (config.target,), balanced=False) if target is None else target


def check_one_server(config: ClientConfig) -> None:
    """Check that a client's calls all go to one server, as what that server alone knows needs.

    Raises:
        RequestError: if its target names several.
    """
    if target_of(config).balanced:
        raise errors.RequestError(
            f"{config.target} is of several servers, and a lease is one's: connect to that one, or "
            "use opferry lease, which asks each of them",
            argument="target",
            given=config.target,
            allowed="host:port",
        )


def channel_credentials(tls: TlsConfig | None) -> grpc.ChannelCredentials | None:
    """Return what a channel proves itself with, and asks of the server; None: no TLS.

    Raises:
        RequestError: if a file cannot be read.
    """
    if tls is None:
        return None
    if bool(tls.certificate) != bool(tls.key):
        raise errors.RequestError("tls: certificate and key go together; give both", argument="tls")
    return grpc.ssl_channel_credentials(
        _content(tls.authorities), _content(tls.key), _content(tls.certificate)
    )


def call_metadata(config: ClientConfig, device_lease: str) -> tuple[tuple[str, str], ...] | None:
    """Return what goes with each call; *device_lease* is the token of a lease, or "".

    Raises:
        AccessError: if the token cannot be read.
    """
    found = (*config.metadata, *(trace_headers() or ()))
    if device_lease:
        found = (*found, (wire.DEVICE_LEASE_KEY, device_lease))
    if config.token is None:
        return found or None
    try:
        return (*found, *config.token.metadata())
    except TokenError as error:
        raise errors.AccessError(
            str(error), argument="token", status=StatusCode.UNAUTHENTICATED
        ) from error


def _content(file: str) -> bytes | None:
    if not file:
        return None
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise errors.RequestError(
            f"tls: {file}: {error.strerror}", argument="tls", given=file
        ) from error


def proxy_for(target: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the HTTP proxy that gRPC uses for *target*, and the variable it is from, or None.

    gRPC's own rules: the first of grpc_proxy, https_proxy and http_proxy, unless no_grpc_proxy or
    else no_proxy names the host or a domain that it ends in. A password is left out.
    """
    variables = os.environ if environment is None else environment
    if is_loopback(target) or target.startswith("unix:") or "," in target:
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
