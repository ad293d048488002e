"""Reads C headers as text: function prototypes and constants, without a compiler on the host.

Both branches of every #if are read: on the platforms that CANN has, they differ in attributes only.
What is not understood is said to be so, and never taken for something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from opferry_server.doctor.c_text import clean, closing, evaluate, split_commas
from opferry_server.doctor.c_types import NotUnderstoodError, Types

LARGEST_BYTES = 8 * 2**20
"""Larger files hold tables, not prototypes."""

_ENUM = re.compile(r"\benum\b[\w\s:]*\{([^{}]*)\}")
_NO_DECLARATION = re.compile(r"[=?.]|\b(?:return|typedef|else|static|template)\b")
_CONSTANT = re.compile(r"\b(?:const|constexpr)\s[\w\s:]*?(\w+)\s*=\s*([^;{}]+);")


class HeadersError(Exception):
    """There are no headers to read; the text says where."""


class Declaration(NamedTuple):
    """One place where a function is declared."""

    file: Path
    """The header."""
    text: str
    """The declaration on one line."""
    words: tuple[str, ...]
    """What it returns and its parameters, in the words of `backends.aclnn.words`."""
    trouble: str
    """What was not understood, or ""; then there are no words."""
    is_pointer_type: bool
    """Whether it is the typedef of a pointer to such a function, and not the function."""


class Definition(NamedTuple):
    """One place where a constant is defined."""

    file: Path
    """The header."""
    text: str
    """The expression that it stands for."""
    value: int | None
    """Its value; None: not understood."""


class Headers:
    """All headers below some folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Read them.

        Raises:
            HeadersError: if a folder is none, or there is no header in them.
        """
        for folder in folders:
            if not folder.is_dir():
                raise HeadersError(f"{folder} is no folder")
        self._texts: dict[Path, str] = {}
        self._macros: dict[str, list[tuple[Path, str]]] = {}
        names: set[str] = set()
        for path in header_files(folders):
            cleaned = clean(path.read_text(encoding="utf-8", errors="replace"))
            self._texts[path] = cleaned.text
            names |= cleaned.functions
            for name, text in cleaned.macros.items():
                self._macros.setdefault(name, []).append((path, text))
        if not self._texts:
            raise HeadersError(f"there is no header (*.h) under {', '.join(map(str, folders))}")
        self._types = Types(self._texts.values(), names.union(self._macros))

    @property
    def count(self) -> int:
        """How many headers were read."""
        return len(self._texts)

    def functions(self, name: str) -> list[Declaration]:
        """Return where a function is declared, then where a pointer type `_name` to it is."""
        found = []
        for path, text in self._texts.items():
            if name in text:
                found += list(self._declared(path, text, name))
        return sorted(found, key=lambda item: item.is_pointer_type)

    def constants(self, name: str) -> list[Definition]:
        """Return where a constant is defined: an enumerator, a macro or a const."""
        return [
            Definition(path, text, self._value(text)) for path, text in self._places.get(name, [])
        ]

    def names(self) -> list[str]:
        """Return whatever is declared as a function, by its name."""
        calls = re.compile(r"\b(\w+)\s*\(")
        named = {name for text in self._texts.values() for name in calls.findall(text)}
        return sorted(name for name in named if self.functions(name))

    def _declared(self, path: Path, text: str, name: str) -> Iterator[Declaration]:
        for match in re.finditer(rf"\b{name}\s*\(", text):
            start = max(text.rfind(mark, 0, match.start()) for mark in ";{}") + 1
            result = text[start : match.start()]
            # without a type before it, or inside of an expression, it is a call; what is static
            # or a template is C++'s overload of the function in the library
            is_other = not result.strip() or _NO_DECLARATION.search(result)
            if not is_other and result.count("(") == result.count(")"):
                yield self._declaration(path, text, start, result, match.end())
        pointer = rf"\btypedef\b([^;(){{}}]*)\(\s*\*\s*_{name}\s*\)\s*\("
        for match in re.finditer(pointer, text):
            start, result = match.start(), match[1]
            found = self._declaration(path, text, start, result, match.end())
            yield found._replace(is_pointer_type=True)

    def _declaration(
        self, path: Path, text: str, start: int, result: str, opened: int
    ) -> Declaration:
        end = closing(text, opened - 1)
        shown = " ".join(text[start:end].split()).replace('extern "" ', "")
        try:
            words = self._types.words(result, text[opened : end - 1])
        except NotUnderstoodError as err:
            return Declaration(path, shown, (), str(err), False)
        return Declaration(path, shown, words, "", False)

    @cached_property
    def _places(self) -> dict[str, list[tuple[Path, str]]]:
        """Where each constant is defined, and by which expression."""
        places = {name: list(found) for name, found in self._macros.items()}
        for path, text in self._texts.items():
            for body in _ENUM.findall(text):
                last = "-1"
                for item in split_commas(body):
                    name, _, expression = (part.strip() for part in item.partition("="))
                    if name:
                        last = expression or f"({last}) + 1"
                        places.setdefault(name, []).append((path, last))
            for name, expression in _CONSTANT.findall(text):
                places.setdefault(name, []).append((path, expression.strip()))
        return places

    def _value(self, text: str) -> int | None:
        try:
            return evaluate(text, self._number)
        except (ValueError, RecursionError):
            return None

    def _number(self, name: str) -> int:
        for _, text in self._places.get(name, []):
            return evaluate(text, self._number)
        raise ValueError(f"{name} is not known")


def header_files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the headers below some folders, each once. Links are followed: CANN's folders are."""
    seen: set[str] = set()
    for folder in folders:
        for place, inner, names in os.walk(folder, followlinks=True):
            inner.sort()
            if _seen_before(place, seen):
                inner.clear()
                continue
            for name in sorted(names):
                path = Path(place, name)
                if not name.endswith((".h", ".hpp")) or not path.is_file():
                    continue
                if path.stat().st_size <= LARGEST_BYTES and not _seen_before(str(path), seen):
                    yield path


def _seen_before(path: str, seen: set[str]) -> bool:
    real = os.path.realpath(path)
    if real in seen:
        return True
    seen.add(real)
    return False
