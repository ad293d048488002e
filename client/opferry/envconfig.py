"""What the environment says to a client."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opferry._token import TokenSource
    from opferry.config import KeepaliveConfig, TlsConfig

TARGET_VARIABLE = "OPFERRY_TARGET"
"""The variable that holds the server's address where none is given."""

CONTEXT_VARIABLE = "OPFERRY_CONTEXT"
"""The variable that names the context where none is given."""

TOKEN_VARIABLE = "OPFERRY_TOKEN"  # noqa: S105 - a name
"""The variable that holds the token where none is given."""

TOKEN_FILE_VARIABLE = "OPFERRY_TOKEN_FILE"  # noqa: S105 - a name
"""The variable that names a file with the token; the file may change."""

METADATA_VARIABLE = "OPFERRY_METADATA"
"""The variable that holds metadata for each call, KEY=VALUE with commas between several."""

DEVICE_LEASE_VARIABLE = "OPFERRY_DEVICE_LEASE"
"""The variable that holds the token of a lease of a device."""

TLS_VARIABLE = "OPFERRY_TLS_"
"""What the variables of the fields of `TlsConfig` begin with; "system" for the authorities stands
for those that gRPC comes with."""

SYSTEM = "system"

KEEPALIVE_VARIABLE = "OPFERRY_KEEPALIVE_S"
"""The variable that holds the period of pings, in seconds, where none is given."""


def metadata_from_environment() -> dict[str, str]:
    """Return the metadata of OPFERRY_METADATA."""
    pairs = [pair for pair in os.environ.get(METADATA_VARIABLE, "").split(",") if pair.strip()]
    split = [pair.partition("=") for pair in pairs]
    return {key.strip(): value.strip() for key, _, value in split}


def device_lease_from_environment() -> str:
    """Return the token of a lease of a device from OPFERRY_DEVICE_LEASE, "" for none."""
    return os.environ.get(DEVICE_LEASE_VARIABLE, "")


def target_from_environment() -> str | None:
    """Return the server's address from OPFERRY_TARGET, or None."""
    return os.environ.get(TARGET_VARIABLE) or None


def context_from_environment() -> str | None:
    """Return the name of a context from OPFERRY_CONTEXT, or None."""
    return os.environ.get(CONTEXT_VARIABLE) or None


def token_from_environment() -> TokenSource | None:
    """Return the token of OPFERRY_TOKEN, or the file of OPFERRY_TOKEN_FILE, or None.

    Raises:
        TokenError: if OPFERRY_TOKEN has no token.
    """
    from opferry._token import TokenError, TokenSource

    if token := os.environ.get(TOKEN_VARIABLE):
        try:
            return TokenSource(token.strip())
        except TokenError as error:
            raise TokenError(f"{TOKEN_VARIABLE}: {error}") from None
    if file := os.environ.get(TOKEN_FILE_VARIABLE):
        return TokenSource(file=file)
    return None


def keepalive_from_environment() -> KeepaliveConfig:
    """Return what OPFERRY_KEEPALIVE_S says of pings, or the defaults.

    Raises:
        ValueError: if it is no positive number.
    """
    from opferry.config import KeepaliveConfig

    if not (word := os.environ.get(KEEPALIVE_VARIABLE)):
        return KeepaliveConfig()
    try:
        period_s = float(word)
    except ValueError:
        period_s = 0.0
    if not 0.0 < period_s < 1e6:
        raise ValueError(f"{KEEPALIVE_VARIABLE} is {word!r}; give seconds, such as 30")
    return KeepaliveConfig(period_s)


def tls_from_environment(context: TlsConfig | None = None) -> TlsConfig | None:
    """Return what OPFERRY_TLS_AUTHORITIES and its likes say of TLS, or None.

    Args:
        context: what counts where they say nothing.
    """
    from opferry.config import TlsConfig

    said = {
        field.name: value
        for field in fields(TlsConfig)
        if (value := os.environ.get(TLS_VARIABLE + field.name.upper()))
    }
    return tls_of_words({**vars(context or TlsConfig()), **said}) if said else context


def tls_of_words(words: dict[str, str]) -> TlsConfig:
    """Return what some words say, by the names of fields; "system" stands for no file."""
    from opferry.config import TlsConfig

    authorities = words.get("authorities", "")
    return TlsConfig(**{**words, "authorities": "" if authorities == SYSTEM else authorities})
