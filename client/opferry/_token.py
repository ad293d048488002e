"""A client's token: sent with each call, and shown nowhere."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

TOKEN_KEY = "authorization"  # noqa: S105 - the metadata key of a token, not one

LOOK_AGAIN_S = 1.0
"""How long a file's token is used before the file is looked at again."""

FILE_BYTES = 64 * 1024
"""More than a token's file has."""

_VALID = re.compile(r"[A-Za-z0-9._~+/-]{1,4096}=*")


class TokenError(ValueError):
    """It is no token; the text does not quote it."""


class TokenSource:
    """A token, or a file with one that may change. Neither repr nor copies to text show it."""

    def __init__(self, token: str = "", file: str = "") -> None:
        """Take a token, or the name of a file, which is read when a call is made.

        Raises:
            TokenError: if *token* cannot be one.
        """
        self._file = file
        self._looked_s = 0.0
        self._changed: tuple[int, int, int] | None = None
        self._token = "" if file else valid_token(token)

    def __repr__(self) -> str:
        return f"TokenSource(file={self._file!r})" if self._file else "TokenSource(...)"

    def __reduce__(self) -> str:
        raise TypeError("a token is not to be pickled; connect again where it is needed")

    def __deepcopy__(self, _: object) -> TokenSource:
        return self

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with a call.

        Raises:
            TokenError: if the file cannot be read, or has no token.
        """
        if self._file and time.monotonic() - self._looked_s >= LOOK_AGAIN_S:
            self._look()
        return ((TOKEN_KEY, f"Bearer {self._token}"),)

    def _look(self) -> None:
        try:
            # through links: a mounted secret changes by its link
            found = os.stat(self._file)
            changed = (found.st_ino, found.st_mtime_ns, found.st_size)
            if changed != self._changed:
                self._token = read_token(Path(self._file))
        except OSError as err:
            raise TokenError(f"token file {self._file}: {err.strerror}") from err
        self._changed, self._looked_s = changed, time.monotonic()


def read_token(path: Path) -> str:
    """Return the token that a file has in its only line.

    Raises:
        TokenError: if it has none.
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES)
    try:
        return valid_token(raw.decode("ascii").strip())
    except (UnicodeDecodeError, TokenError):
        raise TokenError(f"token file {path}: it must have one token and nothing else") from None


def valid_token(token: str) -> str:
    """Return a token that can be sent as it is.

    Raises:
        TokenError: if it has characters that no token has, a line's end for instance.
    """
    if not _VALID.fullmatch(token):
        raise TokenError(
            "the token is none: allowed are letters, digits and ._~+/-=, without blanks or line "
            "ends, at most 4096"
        )
    return token
