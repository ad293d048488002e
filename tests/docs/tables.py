"""The tables in docs/ that the code gives; `python -m tests.docs.tables --write` renews them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from opferry.cli._ttk_words import NOT_SERVED
from opferry.core.limits import GIB, KIB, MIB
from opferry.core.problems import RULES, Reason
from opferry_server.backends.aclnn.status import MEANINGS as MEANINGS_OF_CANN
from opferry_server.backends.aclnn.status import Effect
from opferry_server.backends.aclnn.symbols import LIBRARIES
from opferry_server.backends.aclnn.words import shown as prototype
from opferry_server.backends.aclnn.words import words_of
from opferry_server.config import ENV_PREFIX, ServerConfig
from opferry_server.doctor.abi import FUNCTIONS

ROOT = Path(__file__).parents[2]

MEANINGS = {
    Reason.TENSOR_MALFORMED: "extents, strides, offset, storage or size of a tensor disagree",
    Reason.INPUT_MISSING: "a required input, or the partner of an optional one, is absent",
    Reason.INPUT_UNKNOWN: "the operator has no such input",
    Reason.SHAPE_MISMATCH: "a shape breaks the operator's contract",
    Reason.DTYPE_NOT_ALLOWED: "a dtype is not allowed, or differs from the other inputs'",
    Reason.ENUM_NOT_SET: "an enum has its zero value",
    Reason.ENUM_UNKNOWN: "an enum has a number, or an attribute a word, that nobody knows",
    Reason.ATTRIBUTE_INVALID: "an attribute or option is unknown, or of the wrong kind",
    Reason.LAYOUT_NOT_SUPPORTED: "the layout exists; this operator does not serve it",
    Reason.ROTARY_MODE_NOT_SUPPORTED: "the rotary mode exists; this operator does not serve it",
    Reason.REFUSED_BY_DEVICE: "asked for its own word (no contract check), the device refused",
    Reason.OPERATOR_NOT_SUPPORTED: "the operator is not known here, or none is named",
    Reason.OPERATOR_PACKAGE_UNKNOWN: "the operator package is not on this server",
    Reason.OPERATOR_PACKAGE_NOT_READY: "no worker can serve the operator package now",
    Reason.TENSOR_TOO_LARGE: "a tensor or the whole request is over a limit in bytes",
    Reason.LIMIT_EXCEEDED: "a count or a name is over its limit",
    Reason.FIELD_UNKNOWN: "the message has a field that this server does not know",
    Reason.STREAM_PROTOCOL: "frames out of order, a gap, an overlap, bytes missing or too many",
    Reason.SERVER_BUSY: "the queue is full; RetryInfo says when to try again",
    Reason.SHUTTING_DOWN: "the server ends; RetryInfo says when to try again",
    Reason.QUOTA_EXCEEDED: "the caller has had its share for now",
    Reason.DEVICE_MEMORY_EXHAUSTED: "the device has no memory left for it",
    Reason.DEVICE_FAULT: "the device or its worker broke while it ran the request",
    Reason.OPERATOR_FAILED: "the operator or its backend failed; the worker lives on",
    Reason.NOT_DETERMINISTIC: "runs on the same inputs gave different bits, as was asked",
    Reason.REQUEST_POISONED: "the same request broke devices before and is not run again",
    Reason.CHECKSUM_MISMATCH: "a tensor is not what its digest says",
    Reason.RECIPE_MISMATCH: "data made from a recipe is not what its digest says",
    Reason.STREAM_IDLE: "the client neither sent nor read for `stream_idle_ms`",
    Reason.QUEUE_DEADLINE: "the request waited for `queue_ms`",
    Reason.RUN_DEADLINE: "the request ran for `run_ms`; its worker was ended",
    Reason.CANCELLED: "somebody who may ended the request, by `opferry cancel`",
    Reason.REQUEST_UNKNOWN: "no request of the caller's tenant with this id is inside",
    Reason.DEVICE_LEASE_EXPIRED: "the lease of a device that the request names is over",
    Reason.LEASE_EXPIRED: "what the server kept for the caller is gone: data, or leased memory",
    Reason.LEASE_IN_USE: "another request uses the leased memory",
    Reason.ARENA_INVALID: "the region of leased memory is misaligned, too small or not inside it",
    Reason.UNAUTHENTICATED: "the caller did not say who he is",
    Reason.PERMISSION_DENIED: "the caller may not do this",
    Reason.ERROR_TEXT_UNKNOWN: "`GetErrorText`: no text is kept under this request id",
    Reason.SERVER_DEFECT: "a fault of the server's own; its log says which",
}
"""What each reason means, for the table; one for each reason, or making the table fails."""


def rows(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    heading = list(head)
    table = [heading, ["---"] * len(heading), *map(list, lines)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table).replace("| --- ", "|---")


def reasons() -> str:
    """Return all reasons, and which of them the code does not give yet."""
    table = rows(
        ("reason", "means", "gRPC status", "Python exception", "retry"),
        (
            (
                f"`{reason.value}`",
                MEANINGS[reason],
                rule.status.name,
                f"`{rule.error}`",
                "yes" if rule.may_retry else "no",
            )
            for reason, rule in RULES.items()
        ),
    )
    idle = [f"`{reason.value}`" for reason in RULES if reason not in given_reasons()]
    if not idle:
        return table
    note = fill(f"No server of this version gives {', '.join(idle)}.", 100)
    return f"{table}\n{note}\n"


def given_reasons() -> set[Reason]:
    """Return the reasons that the code outside the table itself names, where a server runs it."""
    sources = [*(ROOT / "client").rglob("*.py"), *(ROOT / "server").rglob("*.py")]
    given = [path for path in sources if path.name != "problems.py"]  # the table itself
    text = "\n".join(path.read_text() for path in given)
    return {Reason(name) for name in re.findall(r"\bReason\.([A-Z_]+)\b", text)}


def options() -> str:
    """Return all options of opferry-server, by flag and variable."""
    named = [
        (name, field.get_default(call_default_factory=True), field.description or "")
        for name, field in ServerConfig.options()
    ]
    return rows(
        ("flag", "variable", "default", "what"),
        (
            (
                flags(name, default),
                f"`{ENV_PREFIX}{name.replace('.', '__').upper()}`",
                shown(default),
                text[:1].upper() + text[1:].rstrip("."),
            )
            for name, default, text in named
        ),
    )


def flags(name: str, default: Any) -> str:
    """Return the flags of an option as the table shows them: of a switch that is on, both."""
    flag = name.replace("_", "-")
    return f"`--{flag}`, `--no-{flag}`" if default is True else f"`--{flag}`"


def statuses() -> str:
    """Return the statuses of CANN's that are told apart, and what follows from each."""
    follows = {
        Effect.NONE: "nothing",
        Effect.PROBE: "the device is probed, by another worker",
        Effect.RECYCLE: "the worker is replaced",
        Effect.FAULT: "the worker is replaced",
        Effect.LOST: "the worker is replaced",
        Effect.BROKEN: "the device is out of service",
    }
    return rows(
        ("code", "CANN's name", "reason", "gRPC status", "then"),
        (
            (
                str(code),
                f"`{meaning.name}`",
                f"`{meaning.reason.value}`",
                (meaning.status or RULES[meaning.reason].status).name,
                follows[meaning.effect],
            )
            for code, meaning in sorted(MEANINGS_OF_CANN.items())
        ),
    )


def unverified() -> str:
    """Return the functions whose prototypes are known from documents alone."""
    return rows(
        ("function", "library", "as the server calls it"),
        (
            (
                f"`{symbol.name}`",
                ", ".join(f"`{file}`" for file in LIBRARIES[symbol.library]),
                f"`{prototype(symbol.name, words_of(symbol.restype, symbol.argtypes))}`",
            )
            for symbol in FUNCTIONS
            if symbol.source == "document"
        ),
    )


def ttk_words() -> str:
    """Return TTK's words that are not served, and what to use instead."""
    words: dict[str, list[str]] = {}
    for word, instead in NOT_SERVED.items():
        words.setdefault(instead, []).append(f"`{word}`")
    lines = ((", ".join(group), instead) for instead, group in words.items())
    return rows(("word", "instead"), lines)


def shown(value: Any) -> str:
    """Return a default as the table shows it."""
    if value is None:
        return "none"
    if value in ("", {}, []):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if isinstance(value, int) and value >= unit and value % unit == 0:
            return f"`{value}` ({value // unit} {name})"
    return f"`{value}`"


class Place(NamedTuple):
    """A table and where it stands."""

    file: str
    """The file, relative to the root."""
    name: str
    """The name in its marker."""
    make: Callable[[], str]
    """Returns the table."""

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / self.file

    def renewed(self, text: str) -> str:
        """Return a file's text with the table as it is now.

        Raises:
            ValueError: if the file has no place for it.
        """
        start, end = f"<!-- table: {self.name} -->\n", "<!-- end of table -->"
        before, found, rest = text.partition(start)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"{self.file} has no place for the table {self.name}")
        return f"{before}{start}\n{self.make()}\n{end}{after}"


PLACES = (
    Place("docs/protocol.md", "reasons", reasons),
    Place("docs/operations.md", "options", options),
    Place("docs/operations.md", "statuses", statuses),
    Place("docs/operations.md", "unverified", unverified),
    Place("docs/case-files.md", "ttk words", ttk_words),
)
"""Every table that the code gives."""


def main() -> int:
    """Check the tables, or write them; return 1 if one was not current and not written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the tables in place")
    write = parser.parse_args().write
    stale = False
    for place in PLACES:
        text = place.path.read_text()
        if place.renewed(text) == text:
            continue
        stale = True
        print(f"{place.file}: table {place.name} is {'written' if write else 'not current'}")
        if write:
            place.path.write_text(place.renewed(text))
    return 1 if stale and not write else 0


if __name__ == "__main__":
    sys.exit(main())
