"""The options of who may connect, and of connections; every one with the sentence of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from opferry.core.addresses import is_loopback
from opferry_server.access.authentication import Authentication
from opferry_server.access.tls import ServerTls


class TlsOptions(BaseModel):
    """Encryption, and certificates of clients."""

    model_config = ConfigDict(extra="forbid")

    certificate: str = Field(
        default="", description="a PEM file: the server's certificate and those up to its authority"
    )
    key: str = Field(default="", description="a PEM file: the certificate's key, not encrypted")
    client_authorities: str = Field(
        default="",
        description="a PEM file: clients must have a certificate of one of these authorities "
        "(mutual TLS)",
    )
    proxies: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="names of certificates whose owners are believed what they forward of their "
        "clients' certificates (x-forwarded-client-cert), commas between several",
    )

    @field_validator("proxies", mode="before")
    @classmethod
    def _names_of_words(cls, given: Any) -> Any:
        words = given.split(",") if isinstance(given, str) else given
        return [word.strip() for word in words if word] if isinstance(words, list) else words

    @model_validator(mode="after")
    def _goes_together(self) -> TlsOptions:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("tls.certificate and tls.key go together; give both")
        if self.client_authorities and not self.certificate:
            raise ValueError("tls.client_authorities takes tls.certificate and tls.key too")
        if self.proxies and not self.client_authorities:
            raise ValueError(
                "tls.proxies takes tls.client_authorities: a proxy is known by its certificate"
            )
        return self

    def open(self) -> ServerTls | None:
        """Return the server's side of TLS; None: there is none.

        Raises:
            TlsError: if a file cannot be used.
        """
        if not self.certificate:
            return None
        authorities = Path(self.client_authorities) if self.client_authorities else None
        return ServerTls(Path(self.certificate), Path(self.key), authorities)


class AuthOptions(BaseModel):
    """Who calls."""

    model_config = ConfigDict(extra="forbid")

    tokens: str = Field(
        default="",
        description="a TOML file of tokens and certificates with their tenants and roles; see "
        "opferry-server token. Empty: whoever can connect is a user",
    )


class ConnectionOptions(BaseModel):
    """What connections may do, and how long they live."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(
        default=1024, ge=1, le=2**20, description="the most connections; more are closed at once"
    )
    handshake_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds that a new connection gets for the handshakes of TLS and HTTP/2",
    )
    idle_s: float = Field(
        default=300.0, gt=0, description="seconds without a call after which a connection ends"
    )
    age_s: float = Field(
        default=600.0,
        gt=0,
        description="seconds after which a connection takes no new calls, so that its client "
        "connects again, and finds new servers; calls that are open go on",
    )
    metadata_bytes: int = Field(
        default=16 * 1024,
        ge=1024,
        le=2**20,
        description="the most metadata that a call may bring",
    )
    ping_s: float = Field(
        default=60.0,
        gt=0,
        description="seconds without a word from a client after which the server pings it",
    )
    ping_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="seconds without an answer to a ping after which a connection is closed",
    )
    least_ping_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds that a client must leave between its pings; one that does not is "
        "taken for an attack. The SDK's period is 30 s, and must be longer than this",
    )

    def channel_options(self) -> tuple[tuple[str, int], ...]:
        """Return them as gRPC's server has them."""
        return (
            ("grpc.max_allowed_incoming_connections", self.count),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_s)),
            ("grpc.max_connection_idle_ms", _ms(self.idle_s)),
            # what is open has no limit of age: streams of many calls last as long as they last
            ("grpc.max_connection_age_ms", _ms(self.age_s)),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes),
            ("grpc.keepalive_time_ms", _ms(self.ping_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.ping_timeout_s)),
            ("grpc.http2.ping_timeout_ms", _ms(self.ping_timeout_s)),
            # a call whose operator runs for minutes has no data, and its client is pinged too
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.least_ping_s)),
            ("grpc.keepalive_permit_without_calls", 1),
        )


def check_access(address: str, insecure: bool, tls: TlsOptions, auth: AuthOptions) -> None:
    """Check that nobody is served by mistake whom nobody knows.

    Raises:
        ValueError: saying what to do.
    """
    if tls.proxies and not auth.tokens:
        raise ValueError("tls.proxies takes auth.tokens: it says whose a forwarded certificate is")
    if insecure or is_loopback(address):
        return
    can_be_reached = f"address {address!r} can be reached by others and"
    if not (auth.tokens or tls.client_authorities):
        raise ValueError(
            f"{can_be_reached} there are no credentials; give auth.tokens with tls.certificate and "
            "tls.key, or tls.client_authorities, or listen on 127.0.0.1, or say --insecure"
        )
    if not tls.certificate:
        raise ValueError(
            f"{can_be_reached} tokens would travel in clear; give tls.certificate and tls.key, or "
            "listen on 127.0.0.1, or say --insecure"
        )


def open_authentication(tls: TlsOptions, auth: AuthOptions) -> Authentication:
    """Return what says who calls.

    Raises:
        CredentialsError: if the file of credentials cannot be read, or is wrong.
    """
    return Authentication(
        Path(auth.tokens) if auth.tokens else None,
        certificates_required=bool(tls.client_authorities),
        proxies=frozenset(tls.proxies),
    )


def _ms(seconds: float) -> int:
    # what gRPC takes for endless
    return min(round(seconds * 1000), 2**31 - 1)
