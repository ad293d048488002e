"""C types in words that a header and ctypes have in common, such as "int32" or "char*".

Numbers go by their width; an enum is an "int32". A pointer to a number keeps its target, a pointer
to a pointer is "pointer*", and a pointer to anything else is "pointer", as ctypes has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

POINTER = "pointer"
"""The word of a pointer to something opaque."""

_SIMPLE = {
    ctypes.c_int: "int32",
    ctypes.c_int32: "int32",
    ctypes.c_uint32: "uint32",
    ctypes.c_int64: "int64",
    ctypes.c_uint64: "uint64",
    ctypes.c_size_t: "uint64",
    ctypes.c_float: "float32",
    ctypes.c_char_p: "char*",
    ctypes.c_void_p: POINTER,
    None: "void",
}


def words_of(restype: Any, argtypes: Iterable[Any]) -> tuple[str, ...]:
    """Return the words of a ctypes prototype: what it returns, then its parameters."""
    return (word_of(restype), *(word_of(item) for item in argtypes))


def word_of(kind: Any) -> str:
    """Return the word of a ctypes type.

    Raises:
        KeyError: for a type that no prototype of ours has.
    """
    target = getattr(kind, "_type_", None)
    if kind not in _SIMPLE and isinstance(target, type):
        return pointer_to(word_of(target))
    return _SIMPLE[kind]


def pointer_to(word: str) -> str:
    """Return the word of a pointer to a type."""
    if word == POINTER or word.endswith("*"):
        return f"{POINTER}*"
    if word.startswith(("int", "uint", "float")) or word == "char":
        return f"{word}*"
    return POINTER


def shown(name: str, words: Iterable[str]) -> str:
    """Return a prototype in words for people: `int32 aclInit(char*)`."""
    result, *parameters = words
    return f"{result} {name}({', '.join(parameters)})"
