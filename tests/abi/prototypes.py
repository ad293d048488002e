"""What a C++ compiler makes of C declarations, in the words of `backends.aclnn.words`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PROGRAM = """
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
%(prologue)s

template <class T> std::string word() {
    using std::to_string;
    if constexpr (std::is_void_v<T>) return "void";
    else if constexpr (std::is_pointer_v<T>) {
        using P = std::remove_cv_t<std::remove_pointer_t<T>>;
        if constexpr (std::is_same_v<P, char>) return "char*";
        else if constexpr (std::is_pointer_v<P>) return "pointer*";
        else if constexpr (std::is_arithmetic_v<P>) return word<P>() + "*";
        else if constexpr (std::is_enum_v<P>) return "int32*";
        else return "pointer";
    }
    else if constexpr (std::is_enum_v<T>) return "int" + to_string(8 * sizeof(T));
    else if constexpr (std::is_floating_point_v<T>) return "float" + to_string(8 * sizeof(T));
    else if constexpr (std::is_class_v<T> || std::is_union_v<T>) return "struct";
    else return (std::is_signed_v<T> ? "int" : "uint") + to_string(8 * sizeof(T));
}

template <class R, class... A> std::string list(R (*)(A...)) {
    std::string out = "[\\"" + word<R>() + "\\"";
    ((out += ", \\"" + word<A>() + "\\""), ...);
    return out + "]";
}

template <class R, class... A> std::string list(R (*)(A..., ...)) {
    std::string fixed = list(static_cast<R (*)(A...)>(nullptr));
    return fixed.substr(0, fixed.size() - 1) + ", \\"...\\"]";
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
