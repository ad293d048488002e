"""Contexts: names for a target, its servers, TLS and a token, kept in the user's configuration.

Tokens are in a file of their own, which others cannot read; all else may be shown and shared.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from opferry._token import TokenError, valid_token
from opferry.config import TlsConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FIELDS = {"target", "servers", "insecure", "tls"}
_TLS_FIELDS = {each.name for each in fields(TlsConfig)}


class ContextError(ValueError):
    """There is no such context, or a file of contexts is wrong."""


@dataclass(frozen=True)
class Context:
    """One context."""

    target: str
    """Where calls go, as for `opferry.connect`."""
    servers: tuple[str, ...] = ()
    """Each server's own "host:port", where the target does not name them; for what is asked of
    every server."""
    tls: TlsConfig | None = None
    """How connections are encrypted; None: they are not."""
    insecure: bool = False
    """Whether the token may be sent where others can read it."""


@dataclass
class Contexts:
    """All contexts of a user."""

    current: str = ""
    """The name of the one that is used where nothing is said; "": none."""
    contexts: dict[str, Context] = field(default_factory=dict)
    """Contexts by name."""

    def find(self, name: str) -> Context:
        """Return a context.

        Raises:
            ContextError: if there is none of that name.
        """
        if name not in self.contexts:
            known = ", ".join(self.contexts) or "none"
            raise ContextError(f"there is no context {name!r}; known are: {known}")
        return self.contexts[name]


def folder() -> Path:
    """Return where the files are: opferry in $XDG_CONFIG_HOME, or in ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "opferry"


def read_contexts() -> Contexts:
    """Return the user's contexts; without a file there are none.

    Raises:
        ContextError: if the file is wrong.
    """
    path = folder() / "config.toml"
    found = _read(path)
    unknown = found.keys() - {"current", "contexts"}
    tables = found.get("contexts", {})
    if unknown or not isinstance(tables, dict):
        raise ContextError(f"{path}: allowed are current and tables [contexts.NAME]")
    contexts = {name: _context(path, name, table) for name, table in tables.items()}
    return Contexts(str(found.get("current", "")), contexts)


def write_contexts(contexts: Contexts) -> None:
    """Keep contexts in place of those that are kept.

    Raises:
        OSError: if the file cannot be written.
    """
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, context in contexts.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]", f"target = {_quoted(context.target)}"]
        if context.servers:
            lines.append(f"servers = [{', '.join(map(_quoted, context.servers))}]")
        if context.insecure:
            lines.append("insecure = true")
        if context.tls is not None:
            lines.append(f"[contexts.{_quoted(name)}.tls]")
            lines += _tls_lines(context.tls)
    _write(folder() / "config.toml", lines, 0o644)


def checked_name(name: str) -> str:
    """Return a context's name.

    Raises:
        ContextError: if it is none.
    """
    if not _NAME.fullmatch(name):
        raise ContextError(
            f"{name!r} is no name of a context; allowed are letters, digits, dot, dash and "
            "underscore, at most 63"
        )
    return name


def token_of(name: str) -> str | None:
    """Return a context's token, or None.

    Raises:
        TokenError: if others can read the file, or it is wrong.
    """
    return _read_tokens().get(name)


def keep_token(name: str, token: str | None) -> None:
    """Keep a context's token, or with None forget it.

    Raises:
        TokenError: if the file is wrong.
        OSError: if it cannot be written.
    """
    tokens = _read_tokens()
    if token is None:
        if tokens.pop(name, None) is None:
            return
    else:
        tokens[name] = valid_token(token)
    lines = ["[tokens]", *(f"{_quoted(key)} = {_quoted(value)}" for key, value in tokens.items())]
    _write(folder() / "tokens.toml", lines, 0o600)


def _read_tokens() -> dict[str, str]:
    path = folder() / "tokens.toml"
    try:
        if path.stat().st_mode & 0o077:
            raise TokenError(f"others can read {path}; chmod 600 it, and ask for new tokens")
    except FileNotFoundError:
        return {}
    try:
        found = _read(path).get("tokens", {})
        return {str(name): valid_token(token) for name, token in found.items()}
    except (ContextError, AttributeError, TypeError, TokenError):
        # nothing of what stands there is quoted
        raise TokenError(f"{path}: it is not as opferry writes it; log in again") from None


def _context(path: Path, name: str, table: Any) -> Context:
    where = f"{path}: context {name!r}"
    if not isinstance(table, dict) or table.keys() - _FIELDS:
        raise ContextError(f"{where}: allowed are {', '.join(sorted(_FIELDS))}")
    target, servers, tls = table.get("target"), table.get("servers", []), table.get("tls")
    if not isinstance(target, str):
        raise ContextError(f"{where}: it has no target")
    if not (isinstance(servers, list) and all(isinstance(each, str) for each in servers)):
        raise ContextError(f"{where}: servers must be a list of host:port")
    if tls is not None and (
        not isinstance(tls, dict)
        or tls.keys() - _TLS_FIELDS
        or not all(isinstance(value, str) for value in tls.values())
    ):
        raise ContextError(f"{where}: tls must have {', '.join(sorted(_TLS_FIELDS))} alone")
    return Context(
        target,
        tuple(servers),
        None if tls is None else TlsConfig(**tls),
        table.get("insecure") is True,
    )


def _tls_lines(tls: TlsConfig) -> Iterator[str]:
    for name, value in vars(tls).items():
        if value:
            yield f"{name} = {_quoted(value)}"


def _quoted(text: str) -> str:
    # what JSON escapes, TOML reads alike; it wants this one too
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ContextError(f"{path}: {error.strerror}") from error
    except ValueError:
        # of a file with a token in the wrong place nothing is quoted
        raise ContextError(f"{path}: it is no TOML") from None


def _write(path: Path, lines: list[str], mode: int) -> None:
    """Replace a file at once."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines).strip("\n") + "\n")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
