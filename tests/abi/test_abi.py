"""Our prototypes and constants against CANN's own headers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from opferry_server.backends.aclnn.operators import BINDINGS
from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.backends.aclnn.symbols import CONSTANTS, SYMBOLS
from tests.abi.headers import HeadersUnavailableError, third_party
from tests.abi.prototypes import ask_compiler, words_of

OURS = {symbol.name: words_of(symbol.restype, symbol.argtypes) for symbol in SYMBOLS}
STAGES = [symbol for binding in BINDINGS.values() for symbol in binding.stages]


def by_source(source: str) -> list[str]:
    return [symbol.name for symbol in (*SYMBOLS, *STAGES) if symbol.source == source]


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.fixture(scope="module")
def headers() -> Path:
    try:
        return third_party()
    except HeadersUnavailableError as err:
        pytest.skip(str(err))


@pytest.fixture(scope="module")
def includes(headers: Path) -> list[Path]:
    return [headers / "acl" / "inc", headers / "acl" / "inc" / "acl"]


ACL = '#include "acl/acl_rt.h"\n#include "acl/error_codes/rt_error_codes.h"\n'


def test_prototypes_from_headers(compiler: str, includes: list[Path], tmp_path: Path) -> None:
    """Every function whose source is a header has there the types that we give it."""
    names = by_source("header")
    found = ask_compiler(compiler, tmp_path, prologue=ACL, functions=names, include=includes)
    assert found == {name: OURS[name] for name in names}
    assert len(names) >= 20


def test_prototypes_from_typedefs(
    compiler: str, headers: Path, includes: list[Path], tmp_path: Path
) -> None:
    """Every function known by a function pointer's type in op-plugin has that type."""
    text = (headers / "op-plugin/op_plugin/utils/op_api_common_base.h").read_text()
    names = by_source("typedef")
    prologue = ACL + "struct aclTensor;\n"
    for name in names:
        typedef = re.search(rf"typedef [^;]*\(\*_{name}\)\([^;]*\);", text)
        assert typedef is not None, f"{name} is no typedef of op-plugin"
        prologue += typedef.group(0) + f"\nusing of_{name} = std::remove_pointer_t<_{name}>;\n"
    # a type is described by a function that has it
    declared = "".join(f"extern of_{name} is_{name};\n" for name in names)
    found = ask_compiler(
        compiler,
        tmp_path,
        prologue=prologue + declared,
        functions=[f"is_{name}" for name in names],
        include=includes,
    )
    assert found == {f"is_{name}": OURS[name] for name in names}


def test_documents_are_no_headers(headers: Path) -> None:
    """What is marked as known from documents alone is declared in no header of the wheel."""
    text = "\n".join(
        path.read_text(errors="replace") for path in sorted(headers.glob("acl/inc/**/*.h"))
    )
    assert "aclrtMalloc" in text
    for name in by_source("document"):
        assert re.search(rf"\b{name}\s*\(", text) is None, f"{name} is declared: check it"


def test_constants(compiler: str, includes: list[Path], tmp_path: Path) -> None:
    """Every constant has its value in the headers."""
    expected = {constant.name: constant.value for constant in CONSTANTS}
    assert {constant.source for constant in CONSTANTS} == {"header"}
    found = ask_compiler(compiler, tmp_path, prologue=ACL, values=expected, include=includes)
    assert found == expected


def test_error_codes(compiler: str, includes: list[Path], tmp_path: Path) -> None:
    """Every runtime error code has its name and number; the aclnn codes are in no header."""
    runtime = {m.name: code for code, m in MEANINGS.items() if m.name.startswith("ACL_ERROR_RT")}
    found = ask_compiler(compiler, tmp_path, prologue=ACL, values=runtime, include=includes)
    assert found == runtime
    text = "\n".join(path.read_text() for path in includes[0].rglob("*.h"))
    for code, meaning in MEANINGS.items():
        if not meaning.name.startswith("ACL_ERROR_RT"):
            assert str(code) not in text, f"{code} is in the headers: check its name"


def test_every_function_has_types() -> None:
    """Without argtypes and restype ctypes cuts pointers to 32 bits."""
    for symbol in (*SYMBOLS, *STAGES):
        assert symbol.restype is not None
        assert isinstance(symbol.argtypes, tuple)
    assert len({symbol.name for symbol in SYMBOLS}) == len(SYMBOLS)
