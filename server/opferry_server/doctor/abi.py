"""Compares every prototype and constant that the backend uses with CANN's own headers.

What `symbols.py` marks as known from documents alone is verified by nothing else, since ctypes
cannot see how a function in a library was declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from opferry_server.backends.aclnn.operators import BINDINGS
from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.backends.aclnn.symbols import CONSTANTS, SYMBOLS, Constant, Source, Symbol
from opferry_server.backends.aclnn.words import shown, words_of
from opferry_server.doctor.headers import Headers

Kind = Literal["function", "constant", "status"]

FUNCTIONS: tuple[Symbol, ...] = (
    *SYMBOLS,
    *(stage for binding in BINDINGS.values() for stage in binding.stages),
)
"""Every function that the backend calls."""


class Agreement(Enum):
    """What the headers say of one entry."""

    AGREES = "agrees"
    """Every place that declares it has it as we have it."""
    DIFFERS = "differs"
    """A place declares it otherwise, or in a way that this reader does not understand."""
    NOT_FOUND = "not found"
    """No header declares it."""


@dataclass(frozen=True)
class Place:
    """One place in the headers."""

    file: str
    """The header."""
    text: str
    """What stands there, on one line."""
    said: str
    """What it comes to, in the words of our side; "" where it is not understood."""
    trouble: str = ""
    """What is not understood."""


@dataclass(frozen=True)
class Comparison:
    """One entry of ours beside the headers."""

    kind: Kind
    """What it is."""
    name: str
    """Its name in C."""
    source: Source
    """Where `symbols.py` says that it can be checked."""
    ours: str
    """As the backend has it."""
    agreement: Agreement
    """What came of it."""
    places: tuple[Place, ...]
    """Where it was found."""
    found_as: str = ""
    """ "declaration", "pointer type" or "definition"; "" where it was not found."""

    @property
    def must_be_found(self) -> bool:
        """Whether the backend relies on it: a status only names an error in a text."""
        return self.kind != "status"


def compare(headers: Headers) -> list[Comparison]:
    """Return what some headers say of all functions, constants and statuses."""
    statuses = (
        Constant(meaning.name, code, _source_of(meaning.name)) for code, meaning in MEANINGS.items()
    )
    return [
        *(_function(headers, symbol) for symbol in FUNCTIONS),
        *(_constant(headers, "constant", constant) for constant in CONSTANTS),
        *(_constant(headers, "status", status) for status in statuses),
    ]


def is_verified(comparisons: Iterable[Comparison]) -> bool:
    """Return whether nothing differs, and all that the backend relies on was found."""
    return not any(
        item.agreement is Agreement.DIFFERS
        or (item.agreement is Agreement.NOT_FOUND and item.must_be_found)
        for item in comparisons
    )


def counts(comparisons: Iterable[Comparison]) -> dict[str, dict[str, int]]:
    """Return how many entries of each source came to what."""
    counter = Counter((item.source, item.agreement.value) for item in comparisons)
    table: dict[str, dict[str, int]] = {}
    for (source, agreement), count in sorted(counter.items()):
        table.setdefault(source, {})[agreement] = count
    return table


def _source_of(status: str) -> Source:
    return "header" if status.startswith("ACL_ERROR_RT") else "document"


def _function(headers: Headers, symbol: Symbol) -> Comparison:
    ours = shown(symbol.name, words_of(symbol.restype, symbol.argtypes))
    found = headers.functions(symbol.name)
    # a pointer type is somebody's copy; the function's own declaration counts if there is one
    own = [item for item in found if not item.is_pointer_type] or found
    places = tuple(
        Place(
            str(item.file),
            item.text,
            "" if item.trouble else shown(symbol.name, item.words),
            item.trouble,
        )
        for item in own
    )
    kind = ("pointer type" if own[0].is_pointer_type else "declaration") if own else ""
    agreement = _agreement(ours, places)
    return Comparison("function", symbol.name, symbol.source, ours, agreement, places, kind)


def _constant(headers: Headers, kind: Kind, constant: Constant) -> Comparison:
    places = tuple(
        Place(str(item.file), item.text, str(item.value))
        if item.value is not None
        else Place(str(item.file), item.text, "", "the expression is not understood")
        for item in headers.constants(constant.name)
    )
    ours = str(constant.value)
    found_as = "definition" if places else ""
    agreement = _agreement(ours, places)
    return Comparison(kind, constant.name, constant.source, ours, agreement, places, found_as)


def _agreement(ours: str, places: tuple[Place, ...]) -> Agreement:
    if not places:
        return Agreement.NOT_FOUND
    agrees = all(place.said == ours for place in places)
    return Agreement.AGREES if agrees else Agreement.DIFFERS
