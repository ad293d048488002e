"""What C types are, in the words of `backends.aclnn.words`: typedefs are followed to their end."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from opferry_server.backends.aclnn.words import POINTER, pointer_to
from opferry_server.doctor.c_text import closing, split_commas, without_attributes

_QUALIFIERS = frozenset(
    ("const", "volatile", "restrict", "__restrict", "__restrict__", "struct", "union", "enum")
)
_SPECIFIERS = frozenset(
    ("extern", "inline", "__inline", "constexpr", "register", "__extension__", "noexcept")
)
_NUMBERS = {
    "void": "void",
    "bool": "uint8",
    "_Bool": "uint8",
    "float": "float32",
    "double": "float64",
    "size_t": "uint64",
    "ssize_t": "int64",
    "uintptr_t": "uint64",
    "intptr_t": "int64",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_INTEGERS = frozenset(("signed", "unsigned", "char", "short", "int", "long"))
_FUNCTION_POINTER = re.compile(r"\(\s*\*\s*\w*\s*\)\s*\(")
_TYPEDEF_NAME = re.compile(r"(\w+)\s*(\[[^\[\]]*\])?\s*$")
_NAMED = re.compile(r"\b(enum|struct|union|class)\s+(?:class\s+)?(\w+)")
_USING = re.compile(r"\busing\s+(\w+)\s*=\s*([^;{}]+);")
_MOST_STEPS = 20


class NotUnderstoodError(Exception):
    """A piece of C that this reader does not know; the text says which."""


class Types:
    """The types that some headers name, and how a prototype is put in words."""

    def __init__(self, texts: Iterable[str], macros: Collection[str]) -> None:
        """Collect typedefs, enums and structs.

        Args:
            texts: headers without comments, strings and directives.
            macros: the names of all macros; one before a type is an attribute.
        """
        self._macros = macros
        self._aliases: dict[str, set[str]] = {}
        for text in texts:
            self._collect(text)

    def words(self, result: str, parameters: str) -> tuple[str, ...]:
        """Return the words of a prototype.

        Args:
            result: what stands before the function's name.
            parameters: what stands between its brackets.

        Raises:
            NotUnderstoodError: naming what is not understood.
        """
        given = [part for part in split_commas(parameters) if part.strip()]
        if [part.strip() for part in given] == ["void"]:
            given = []
        return (self._word(result, names=0), *(self._word(part, names=1) for part in given))

    def _collect(self, text: str) -> None:
        for kind, name in _NAMED.findall(text):
            self._aliases.setdefault(name, set()).add(kind if kind == "enum" else "struct")
        for name, target in _USING.findall(text):
            self._aliases.setdefault(name, set()).add(target.strip())
        for match in re.finditer(r"\btypedef\b", text):
            end = _statement_end(text, match.end())
            self._collect_typedef(text[match.end() : end])

    def _collect_typedef(self, text: str) -> None:
        opened = text.find("{")
        if opened >= 0:
            kind = "enum" if re.match(r"\s*enum\b", text) else "struct"
            rest = text[closing(text, opened) :]
            for part in rest.split(","):
                name = _TYPEDEF_NAME.search(part)
                if name:
                    target = f"{kind} *" if "*" in part else kind
                    self._aliases.setdefault(name[1], set()).add(target)
        elif pointer := re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", text):
            self._aliases.setdefault(pointer[1], set()).add("void *")
        elif (name := _TYPEDEF_NAME.search(text)) and "(" not in text:
            target = text[: name.start()].strip()
            # `typedef struct aclTensor aclTensor;` says only that there is such a struct
            if target.split()[:1] in (["struct"], ["union"]) and "*" not in target:
                target = "struct"
            elif target.split()[:1] == ["enum"]:
                target = "enum"
            self._aliases.setdefault(name[1], set()).add(f"{target} {'*' if name[2] else ''}")

    def _word(self, text: str, names: int) -> str:
        """Return the word of a type behind which up to *names* names may stand."""
        text = without_attributes(text.split("=")[0])
        if _FUNCTION_POINTER.search(text):
            return POINTER
        if text.strip() == "...":
            return "..."
        text, arrays = re.subn(r"\[[^\[\]]*\]", "", text)
        parts = re.findall(r"[\w:]+|\S", text)
        stars = sum(part in ("*", "&") for part in parts) + arrays
        plain = [part for part in parts if part not in ("*", "&") and not self._skips(part)]
        integers = [part for part in plain if part in _INTEGERS]
        others = [part for part in plain if part not in _INTEGERS]
        base = integers or others[:1]
        left = others if integers else others[1:]
        if not base or len(left) > names or not all(re.fullmatch(r"\w+", one) for one in left):
            raise NotUnderstoodError(f"{' '.join(text.split())!r} is not understood")
        return self._pointed(base, stars, 0)

    def _skips(self, part: str) -> bool:
        if part in _QUALIFIERS or part in _SPECIFIERS:
            return True
        # an attribute in disguise: a macro, or capitals that name no type
        capitals = re.fullmatch(r"_*[A-Z][A-Z0-9_]+", part) is not None
        return (part in self._macros or capitals) and part not in self._aliases

    def _pointed(self, base: list[str], stars: int, steps: int) -> str:
        if base == ["char"] and stars:
            word = "char"
        elif set(base) <= _INTEGERS:
            word = _integer(base)
        else:
            word = self._named(base[0].removeprefix("std::"), steps)
        for _ in range(stars):
            word = pointer_to(word)
        return word

    def _named(self, name: str, steps: int) -> str:
        if name in _NUMBERS:
            return _NUMBERS[name]
        if steps > _MOST_STEPS:
            raise NotUnderstoodError(f"type {name} stands for itself")
        targets = self._aliases.get(name, set())
        words = {self._alias(target, steps) for target in targets}
        if len(words) != 1:
            what = f"is one of {', '.join(sorted(words))}" if words else "is not known"
            raise NotUnderstoodError(f"type {name} {what}")
        return words.pop()

    def _alias(self, target: str, steps: int) -> str:
        parts = re.findall(r"[\w:]+|\*", target)
        stars = parts.count("*")
        if parts[:1] == ["enum"]:
            return pointer_to("int32") if stars else "int32"
        if parts[:1] == ["struct"]:
            return POINTER if stars else "struct"
        base = [part for part in parts if part != "*" and not self._skips(part)]
        if not base or (len(base) > 1 and not set(base) <= _INTEGERS):
            raise NotUnderstoodError(f"type {target.strip()} is not understood")
        return self._pointed(base, stars, steps + 1)


def _integer(parts: list[str]) -> str:
    sign = "u" if "unsigned" in parts else ""
    bits = 32
    if "char" in parts:
        bits = 8
    elif "short" in parts:
        bits = 16
    elif "long" in parts:
        bits = 64
    return f"{sign}int{bits}"


def _statement_end(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        if text[index] in "({":
            depth += 1
        elif text[index] in ")}":
            depth -= 1
        elif text[index] == ";" and depth <= 0:
            return index
    return len(text)
