"""What a proxy says of its client's certificate: Envoy's header x-forwarded-client-cert."""

from __future__ import annotations

import re
from collections.abc import Iterator

FORWARDED_KEY = "x-forwarded-client-cert"
"""The metadata key."""

_PAIR = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^,;"]*)')
_NAME_PARTS = re.compile(r"((?:[^,+\\]|\\.)*)(?:[,+]|$)")
"""The parts of a subject, in the form of RFC 2253: commas of values have a backslash."""


def names_of(header: str) -> tuple[str, ...] | None:
    """Return the names in the header: alternative names, then the subject's common name.

    Args:
        header: one element "Key=value;Key=value", as a proxy writes it that replaces what its
            client may have sent.

    Returns:
        None if it is none: malformed, or several elements, of which a client may have made some.
    """
    pairs = []
    at = 0
    while True:
        found = _PAIR.match(header, at)
        if found is None:
            return None
        pairs.append((found.group(1).lower(), _unquoted(found.group(2))))
        at = found.end()
        if at == len(header):
            return tuple(_names(pairs))
        if header[at] != ";":
            return None
        at += 1


def _names(pairs: list[tuple[str, str]]) -> Iterator[str]:
    yield from (value for key, value in pairs if key in ("uri", "dns") and value)
    parts = [
        part.removeprefix("CN=")
        for key, value in pairs
        if key == "subject"
        for part in _NAME_PARTS.findall(value)
        if part.startswith("CN=")
    ]
    if len(parts) == 1:
        yield re.sub(r"\\(.)", r"\1", parts[0])


def _unquoted(word: str) -> str:
    return word[1:-1] if word.startswith('"') else word
