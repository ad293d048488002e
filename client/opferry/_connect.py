"""From what the user of `connect` gives to a client's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opferry import errors, wire
from opferry._targets import ALLOWED, parse_target
from opferry._token import TokenError, TokenSource
from opferry.config import KEPT_RESULT_BYTES, ClientConfig, KeepaliveConfig, RetryConfig, TlsConfig
from opferry.core.problems import Problem, Reason
from opferry.envconfig import (
    TARGET_VARIABLE,
    context_from_environment,
    device_lease_from_environment,
    keepalive_from_environment,
    metadata_from_environment,
    target_from_environment,
    tls_from_environment,
    token_from_environment,
)

if TYPE_CHECKING:
    from opferry._contexts import Context

_KEY = re.compile(r"x-[a-z0-9-]{1,62}")
_VALUE = re.compile(r"[!-~]([ -~]{0,254}[!-~])?")


def client_config(
    target: str | None,
    *,
    timeout: float = 600.0,
    retry: RetryConfig | None = None,
    shared_memory: bool = True,
    kept_result_bytes: int | None = None,
    token: str | None = None,
    tls: TlsConfig | None = None,
    context: str | None = None,
    insecure: bool = False,
    keepalive: KeepaliveConfig | None = None,
    metadata: Mapping[str, str] | None = None,
    device_lease: str | None = None,
) -> ClientConfig:
    """Return the configuration of a client; the arguments are those of `opferry.connect`.

    Raises:
        RequestError: if there is no target or it is none, there is no such context, the token is
            none or would travel in clear, or *kept_result_bytes* is negative.
    """
    place = find_place(target, context)
    if place is None:
        raise errors.RequestError(
            f"no target: give connect() a host:port, or set {TARGET_VARIABLE}", argument="target"
        )
    found, kept_context = place.target, place.context
    parsed = parse_target(found)
    if parsed is None:
        problem = Problem(
            Reason.ATTRIBUTE_INVALID,
            f"target {found!r} is not host:port, such as 127.0.0.1:50051",
            argument="target",
            given=found,
            allowed=ALLOWED,
        )
        raise errors.from_problem(problem)
    kept = KEPT_RESULT_BYTES if kept_result_bytes is None else kept_result_bytes
    if kept < 0:
        text = f"kept_result_bytes is {kept}; give bytes, or 0 to keep none"
        raise errors.RequestError(
            text, argument="kept_result_bytes", given=str(kept), allowed="0 or more"
        )
    source = _token_source(token, place.name)
    context_tls = None if kept_context is None else kept_context.tls
    found_tls = tls_from_environment(context_tls) if tls is None else tls
    insecure = insecure or (kept_context is not None and kept_context.insecure)
    if source is not None and found_tls is None and not (insecure or parsed.is_loopback):
        raise errors.RequestError(
            f"the token would travel in clear to {found}; give tls=opferry.TlsConfig(), or say "
            "insecure=True",
            argument="tls",
        )
    return ClientConfig(
        found,
        timeout,
        RetryConfig() if retry is None else retry,
        shared_memory=shared_memory,
        kept_result_bytes=kept,
        token=source,
        tls=found_tls,
        servers=kept_context.servers if kept_context is not None and not place.moved else (),
        keepalive=_keepalive(keepalive),
        metadata=_metadata(metadata_from_environment() if metadata is None else metadata),
        device_lease=device_lease_from_environment() if device_lease is None else device_lease,
    )


def _metadata(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return metadata of a user's own, checked: gRPC would say no more than that it is invalid."""
    for key, value in given.items():
        if key == wire.DEVICE_LEASE_KEY or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise errors.RequestError(
                f"metadata {key!r}: keys are x- with lower case letters, digits and dashes, and "
                f"not {wire.DEVICE_LEASE_KEY}; values are printable ASCII",
                argument="metadata",
                given=key,
                allowed="x-..., such as x-opferry-soc",
            )
    return tuple(given.items())


def _keepalive(given: KeepaliveConfig | None) -> KeepaliveConfig:
    try:
        found = keepalive_from_environment() if given is None else given
    except ValueError as error:
        raise errors.RequestError(str(error), argument="keepalive") from error
    if min(found.period_s, found.timeout_s) <= 0:
        raise errors.RequestError(
            "keepalive: period_s and timeout_s must be more than 0", argument="keepalive"
        )
    return found


@dataclass(frozen=True)
class Place:
    """Where calls go."""

    target: str
    """The target."""
    name: str = ""
    """The name of the context that counts; "": none."""
    context: Context | None = None
    """The context that counts."""
    moved: bool = False
    """Whether the target is another than the context's."""


def find_place(target: str | None, context: str | None) -> Place | None:
    """Return where calls go: what is given counts before the environment, that before what is kept.

    A context gives target, TLS and token. Named beside a target, in the same place, it gives TLS
    and token alone. A target named nearer leaves it out: its token is not for any server.

    Raises:
        RequestError: if there is no such context, or a file is wrong.
    """
    if target is None and context is None:
        target, context = target_from_environment(), context_from_environment()
    if target is not None and context is None:
        return Place(target) if target else None
    from opferry._contexts import ContextError, read_contexts

    try:
        kept = read_contexts()
        name = context or kept.current
        if not name:
            return None
        found = kept.find(name)
    except ContextError as error:
        raise errors.RequestError(str(error), argument="context", given=context) from error
    return Place(target or found.target, name, found, moved=target not in (None, found.target))


def _token_source(token: str | None, context: str) -> TokenSource | None:
    try:
        if token is not None:
            return TokenSource(token)
        if (found := token_from_environment()) is not None:
            return found
        if not context:
            return None
        from opferry._contexts import token_of

        kept = token_of(context)
        return None if kept is None else TokenSource(kept)
    except TokenError as error:
        raise errors.RequestError(str(error), argument="token") from error
