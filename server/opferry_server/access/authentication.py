"""From a call's metadata and its connection's certificate to who calls, and whether he may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opferry_server.access.credentials import Credentials, CredentialsError, unauthenticated
from opferry_server.access.files import WatchedFiles
from opferry_server.access.forwarded import FORWARDED_KEY, names_of
from opferry_server.identity import ANYONE, Identity, Role

TOKEN_KEY = "authorization"  # noqa: S105 - the metadata key of a token, not one
SCHEME = "Bearer "
"""What stands before a token; its case does not matter."""

LOOKING_METHODS = frozenset(
    {"GetServerInfo", "GetErrorText", "Plan", "ListRequests", "ServerReflectionInfo"}
)
"""What a viewer may call. All else takes a user, or an admin by the method's own rule."""


def least_role(method: str) -> Role:
    """Return what role a method takes."""
    return Role.VIEWER if method in LOOKING_METHODS else Role.USER


class Authentication:
    """Says who calls: for `Requests`, and for what is served beside it."""

    def __init__(
        self, tokens: Path | None, *, certificates_required: bool, proxies: frozenset[str]
    ) -> None:
        """Read the file of credentials, if there is one.

        Args:
            tokens: the file; None: none, and everybody who can connect is a user.
            certificates_required: whether every connection has a certificate that was verified.
            proxies: names of certificates whose owners are believed what they forward.

        Raises:
            CredentialsError: if the file cannot be read, or is wrong.
        """
        self._path = tokens
        self._certificates_required = certificates_required
        self._proxies = proxies
        self._credentials = Credentials({}, {})
        self.files = None if tokens is None else WatchedFiles("credentials", [tokens], self._read)
        """What is to be looked at now and then."""

    def identify(self, context: Any) -> Identity:
        """Return who calls in a gRPC context.

        Raises:
            Problem: UNAUTHENTICATED.
        """
        names = tuple(_certificate_names(context)) if self._certificates_required else ()
        if self.files is None:
            return ANYONE if not names else Identity(ANYONE.tenant, ANYONE.role, names[0])
        metadata = context.invocation_metadata() or ()
        if (token := _token(metadata)) is not None:
            return self._credentials.of_token(token)
        if not self._proxies.isdisjoint(names):
            # its own certificate says nothing of who is behind it
            names = _forwarded_names(metadata)
        if names and (identity := self._credentials.of_names(names)) is not None:
            return identity
        if names:
            raise unauthenticated(
                f"the certificate of {names[0][:200]!r} is nobody's on this server, and there is "
                "no token"
            )
        raise unauthenticated(
            "there are no credentials; send a token as the metadata authorization: Bearer TOKEN"
        )

    def _read(self) -> None:
        assert self._path is not None  # noqa: S101 - watched because it is there
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise CredentialsError(f"auth.tokens: {self._path}: {_cause(err)}") from None
        try:
            self._credentials = Credentials.read(text)
        except CredentialsError as err:
            raise CredentialsError(f"auth.tokens: {self._path}: {err}") from err


def _token(metadata: Any) -> str | None:
    values = [value for key, value in metadata if key == TOKEN_KEY]
    if not values:
        return None
    value = values[0]
    is_bearer = isinstance(value, str) and value[: len(SCHEME)].lower() == SCHEME.lower()
    if len(values) > 1 or not is_bearer:
        raise unauthenticated("the metadata authorization must be there once, as: Bearer TOKEN")
    return str(value[len(SCHEME) :].strip())


def _certificate_names(context: Any) -> Iterator[str]:
    """Yield the names of the verified certificate of a connection's other end."""
    found = context.auth_context()
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        for name in found.get(key, ()):
            yield name.decode("utf-8", "replace")


def _forwarded_names(metadata: Any) -> tuple[str, ...]:
    headers = [value for key, value in metadata if key == FORWARDED_KEY]
    if not headers:
        return ()
    names = names_of(headers[0]) if len(headers) == 1 and isinstance(headers[0], str) else None
    if names is None:
        raise unauthenticated(
            f"the proxy's {FORWARDED_KEY} is not one element; let it set the header itself "
            "(Envoy: SANITIZE_SET)"
        )
    return names


def _cause(err: Exception) -> str:
    return (err.strerror or "cannot be read") if isinstance(err, OSError) else "it is not UTF-8"
