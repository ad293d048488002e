"""What the compiler makes of C declarations, and what ctypes makes of ours, in the same words."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# Each type becomes a word: "i32", "u64", "f32", "char*", "i64*", "ptr", "ptr*". A pointer to
# anything but a number is "ptr", as ctypes has it; enums are their own width.
PROGRAM = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
%(prologue)s

template <class T> std::string word() {
    if constexpr (std::is_void_v<T>) return "void";
    else if constexpr (std::is_pointer_v<T>) {
        using P = std::remove_cv_t<std::remove_pointer_t<T>>;
        if constexpr (std::is_same_v<P, char>) return "char*";
        else if constexpr (std::is_pointer_v<P>) return "ptr*";
        else if constexpr (std::is_arithmetic_v<P>) return word<P>() + "*";
        else if constexpr (std::is_enum_v<P>) return "i32*";
        else return "ptr";
    }
    else if constexpr (std::is_enum_v<T>) return "i" + std::to_string(8 * sizeof(T));
    else if constexpr (std::is_floating_point_v<T>) return "f" + std::to_string(8 * sizeof(T));
    else return (std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
}

template <class R, class... A> std::string list(R (*)(A...)) {
    std::string out = "[\\"" + word<R>() + "\\"";
    ((out += ", \\"" + word<A>() + "\\""), ...);
    return out + "]";
}

template <class F> std::string describe() { return list(static_cast<F *>(nullptr)); }

int main() {
    std::printf("{\\"\\": null");
%(body)s
    std::printf("}\\n");
}
"""


def ask_compiler(
    compiler: str,
    folder: Path,
    *,
    prologue: str,
    functions: Iterable[str] = (),
    values: Iterable[str] = (),
    include: Sequence[Path] = (),
) -> dict[str, Any]:
    """Return, by name, the words of functions' types and the values of constants.

    Args:
        compiler: a C++ compiler.
        folder: where to build.
        prologue: what stands before: includes and declarations.
        functions: functions, or typedefs of functions, to describe.
        values: constants to evaluate.
        include: folders of headers.
    """
    body = [
        f'    std::printf(", \\"{name}\\": %s", describe<decltype({name})>().c_str());'
        for name in functions
    ]
    body += [f'    std::printf(", \\"{name}\\": %lld", (long long)({name}));' for name in values]
    source, program = folder / "ask.cpp", folder / "ask"
    source.write_text(PROGRAM % {"prologue": prologue, "body": "\n".join(body)})
    command = [compiler, "-std=c++17", "-w", str(source), "-o", str(program)]
    for path in include:
        command += ["-I", str(path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[:4000]
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said)
    del found[""]
    return found


_SIMPLE = {
    ctypes.c_int: "i32",
    ctypes.c_int32: "i32",
    ctypes.c_uint32: "u32",
    ctypes.c_int64: "i64",
    ctypes.c_uint64: "u64",
    ctypes.c_size_t: "u64",
    ctypes.c_float: "f32",
    ctypes.c_char_p: "char*",
    ctypes.c_void_p: "ptr",
    None: "void",
}


def words_of(restype: Any, argtypes: Iterable[Any]) -> list[str]:
    """Return the words of a ctypes prototype."""
    return [word_of(restype), *(word_of(item) for item in argtypes)]


def word_of(kind: Any) -> str:
    """Return the word of a ctypes type."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    inner = word_of(kind._type_)
    return "ptr*" if inner == "ptr" else f"{inner}*"
