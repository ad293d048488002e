"""How a client behaves: one small value class for each concern."""

from __future__ import annotations

from dataclasses import dataclass, field

from opferry._token import TokenSource

KEPT_RESULT_BYTES = 2**30
"""What a client keeps: results of some 100 MiB, one after the other, use the same memory."""


@dataclass(frozen=True)
class RetryConfig:
    """When a call is tried again. Only what is safe ever is: see `may_retry` on errors."""

    attempts: int = 100
    """How often a call is tried at the most; 1: never again."""
    total_s: float = 60.0
    """For how long it is tried while the server is busy, within the call's own timeout."""
    unreachable_s: float = 10.0
    """For how long it is tried while the server cannot be reached, likewise."""
    reconnect_s: float = 60.0
    """For how long a validation that has begun waits for its server to come back."""
    first_wait_s: float = 0.1
    """The pause before the second try, doubled each time; a server's hint takes precedence."""
    longest_wait_s: float = 5.0
    """The longest pause."""


@dataclass(frozen=True)
class TlsConfig:
    """How a server proves itself, and the client to it. The files are read when it connects."""

    authorities: str = ""
    """A PEM file with the authorities that a server's certificate may be of; "": those that gRPC
    comes with, or that GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names."""
    certificate: str = ""
    """A PEM file: the client's own certificate, for servers that want one (mutual TLS)."""
    key: str = ""
    """A PEM file: the key of `certificate`, not encrypted."""
    server_name: str = ""
    """The name that the server's certificate must have; "": that of the target."""


@dataclass(frozen=True)
class KeepaliveConfig:
    """How a client finds out, while it waits for an answer, that its server is gone."""

    period_s: float = 30.0
    """After how long without a word the server is pinged, while a call is open. Servers take pings
    that come too often for an attack: it must be more than their `connections.least_ping_s`, and 10
    at the least behind a proxy or a load balancer."""
    timeout_s: float = 60.0
    """How long the answer may take until the connection is given up: it waits behind the data that
    are on their way."""


@dataclass(frozen=True)
class ClientConfig:
    """What a client was made with."""

    target: str
    """Where the server is, or the servers are: see `opferry.connect`."""
    timeout_s: float = 600.0
    """How long a call may take, tries included, where the call does not say."""
    retry: RetryConfig = RetryConfig()
    """When a call is tried again."""
    shared_memory: bool = True
    """Whether tensors pass through memory shared with a server on this host that offers it."""
    kept_result_bytes: int = KEPT_RESULT_BYTES
    """How much memory of results that are no longer used is kept for the next ones."""
    token: TokenSource | None = None
    """Where the token comes from that says who calls."""
    tls: TlsConfig | None = None
    """How the connection is encrypted; None: it is not."""
    servers: tuple[str, ...] = ()
    """Each server's own "host:port", where the target does not name them."""
    metadata: tuple[tuple[str, str], ...] = ()
    """What else goes with each call, for what is on the way: see `opferry.connect`."""
    keepalive: KeepaliveConfig = KeepaliveConfig()
    """How a server that is gone is found out."""
    device_lease: str = field(default="", repr=False)
    """The token of the lease of a device on which all calls run; "": on any device."""
