"""The file of credentials: who has which token or certificate, and what it allows.

Tokens are kept as their SHA-256: who reads the file cannot use them. They are random and long, so
that no slow hash is needed.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from opferry.core.problems import Problem, Reason
from opferry_server.identity import Identity, Role

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOKEN_PREFIX = "opf_"  # noqa: S105 - what tokens begin with, so that scanners find them
TOKEN_BYTES = 32
"""The random bytes of a token."""

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a tenant may be called."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOKEN_FIELDS = {"name", "tenant", "role", "sha256", "expires"}
_CERTIFICATE_FIELDS = {"name", "tenant", "role"}


class CredentialsError(Exception):
    """The file is wrong; the text says where, and quotes nothing of it that is secret."""


@dataclass(frozen=True)
class _Token:
    """What is known of a token."""

    identity: Identity
    expires: datetime | None


class Credentials:
    """What one version of the file says."""

    def __init__(self, tokens: Mapping[str, _Token], certificates: Mapping[str, Identity]) -> None:
        self._tokens = tokens
        self._certificates = certificates

    @classmethod
    def read(cls, text: str) -> Credentials:
        """Return what a file says.

        Raises:
            CredentialsError: if it is no TOML, or an entry is incomplete, unknown or twice there.
        """
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as err:
            # the whole text of such an error may quote the line
            raise CredentialsError(f"it is no TOML{_place(err)}") from None
        unknown = found.keys() - {"tokens", "certificates"}
        if unknown:
            raise CredentialsError(
                f"there is no table {min(unknown)!r}; allowed are [[tokens]] and [[certificates]]"
            )
        tokens: dict[str, _Token] = {}
        for number, entry in _entries(found, "tokens"):
            where = f"token {number}"
            identity = _identity(entry, _TOKEN_FIELDS, where)
            digest = entry.get("sha256")
            if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
                raise CredentialsError(f"{where}: sha256 must be 64 lower case hex digits")
            if digest in tokens:
                raise CredentialsError(f"{where}: the same sha256 is there twice")
            tokens[digest] = _Token(identity, _expiry(entry, where))
        certificates: dict[str, Identity] = {}
        for number, entry in _entries(found, "certificates"):
            where = f"certificate {number}"
            identity = _identity(entry, _CERTIFICATE_FIELDS, where)
            if identity.subject in certificates:
                raise CredentialsError(f"{where}: the name {identity.subject!r} is there twice")
            certificates[identity.subject] = identity
        return cls(tokens, certificates)

    def of_token(self, token: str) -> Identity:
        """Return whose a token is.

        Raises:
            Problem: UNAUTHENTICATED, if it is nobody's or has expired; it is not quoted.
        """
        known = self._tokens.get(digest_of(token))
        if known is None:
            raise unauthenticated("the token is not known to this server")
        if known.expires is not None and known.expires <= datetime.now(timezone.utc):
            raise unauthenticated(
                f"the token {known.identity.subject!r} expired at {known.expires.isoformat()}; "
                "ask for another"
            )
        return known.identity

    def of_names(self, names: Iterable[str]) -> Identity | None:
        """Return whose a certificate with these names is; None: nobody's.

        Args:
            names: common name and alternative names; the first that is listed counts.
        """
        return next(
            (self._certificates[name] for name in names if name in self._certificates), None
        )


def new_token() -> str:
    """Return a token that nobody can guess."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return sha256(token.encode()).hexdigest()


def unauthenticated(text: str) -> Problem:
    """Return the problem of a caller who did not say who he is, or not so that it is believed."""
    return Problem(Reason.UNAUTHENTICATED, text, argument="authorization")


def _entries(found: Mapping[str, Any], table: str) -> list[tuple[int, dict[str, Any]]]:
    entries = found.get(table, [])
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise CredentialsError(f"{table} must be tables: begin each with [[{table}]]")
    return list(enumerate(entries, start=1))


def _identity(entry: Mapping[str, Any], known: set[str], where: str) -> Identity:
    unknown = entry.keys() - known
    if unknown:
        raise CredentialsError(f"{where}: there is no field {min(unknown)!r}")
    name, tenant, role = entry.get("name"), entry.get("tenant"), entry.get("role")
    if not (isinstance(name, str) and name):
        raise CredentialsError(f"{where}: it has no name")
    if not (isinstance(tenant, str) and TENANT_NAME.fullmatch(tenant)):
        raise CredentialsError(
            f"{where}: the tenant must be letters, digits, dot, dash and underscore, at most 63"
        )
    roles = {role.word: role for role in Role}
    if not isinstance(role, str) or role not in roles:
        raise CredentialsError(f"{where}: the role must be one of {', '.join(roles)}")
    return Identity(tenant, roles[role], name)


def _expiry(entry: Mapping[str, Any], where: str) -> datetime | None:
    expires = entry.get("expires")
    if expires is None:
        return None
    if not isinstance(expires, datetime):
        raise CredentialsError(f"{where}: expires must be a time, such as 2027-01-31T00:00:00Z")
    return expires if expires.tzinfo is not None else expires.replace(tzinfo=timezone.utc)


def _place(err: Exception) -> str:
    """Return the place that an error of the parser names, without what stands there."""
    found = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(err))
    return f" at {found.group(1).removeprefix('at ')}" if found else ""
