"""Our prototypes and constants against CANN's own headers, read as `doctor --abi` reads them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.backends.aclnn.symbols import CONSTANTS, SYMBOLS
from opferry_server.backends.aclnn.words import words_of
from opferry_server.doctor.abi import FUNCTIONS, Agreement, Comparison, compare
from opferry_server.doctor.headers import Headers
from tests.abi.headers import HeadersUnavailableError, third_party
from tests.abi.prototypes import ask_compiler


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return third_party()
    except HeadersUnavailableError as err:
        pytest.skip(str(err))


@pytest.fixture(scope="module")
def headers(folder: Path) -> Headers:
    return Headers([folder])


@pytest.fixture(scope="module")
def comparisons(headers: Headers) -> list[Comparison]:
    return compare(headers)


def of(comparisons: list[Comparison], kind: str, source: str) -> list[Comparison]:
    return [item for item in comparisons if item.kind == kind and item.source == source]


@pytest.mark.parametrize(
    ("source", "found_as", "least"), [("header", "declaration", 20), ("typedef", "pointer type", 2)]
)
def test_prototypes_agree(
    comparisons: list[Comparison], source: str, found_as: str, least: int
) -> None:
    """Every function with a header, or a function pointer's type in op-plugin, is as we have it."""
    found = of(comparisons, "function", source)
    assert len(found) >= least
    for item in found:
        assert item.agreement is Agreement.AGREES, item
        assert item.found_as == found_as, item


def test_documents_are_no_headers(comparisons: list[Comparison], folder: Path) -> None:
    """What is marked as known from documents alone is declared in no header of the wheel."""
    found = of(comparisons, "function", "document")
    assert len(found) == 6
    for item in found:
        assert item.agreement is Agreement.NOT_FOUND, f"{item.name} is declared: check it"
    text = "\n".join(path.read_text(errors="replace") for path in folder.glob("acl/inc/**/*.h"))
    for item in found:
        assert re.search(rf"\b{item.name}\s*\(", text) is None


def test_constants(comparisons: list[Comparison]) -> None:
    """Every constant has its value in the headers."""
    found = of(comparisons, "constant", "header")
    assert len(found) == len(CONSTANTS)
    assert {item.agreement for item in found} == {Agreement.AGREES}


def test_statuses(comparisons: list[Comparison], folder: Path) -> None:
    """Every runtime error code has its name and number; the aclnn codes are in no header."""
    runtime = of(comparisons, "status", "header")
    assert {item.agreement for item in runtime} == {Agreement.AGREES}
    documents = of(comparisons, "status", "document")
    assert {item.agreement for item in documents} == {Agreement.NOT_FOUND}
    assert len(runtime) + len(documents) == len(MEANINGS)
    text = "\n".join(path.read_text(errors="replace") for path in folder.glob("acl/inc/**/*.h"))
    for item in documents:
        assert item.ours not in text, f"{item.ours} is in the headers: check its name"


ACL = '#include "acl/acl_rt.h"\n#include "acl/error_codes/rt_error_codes.h"\n'


@pytest.mark.full
def test_the_reader_agrees_with_a_compiler_on_functions(
    compiler: str, folder: Path, tmp_path: Path
) -> None:
    """Whatever acl_rt.h declares, not only what we use, has the types that a compiler sees."""
    include = [folder / "acl" / "inc", folder / "acl" / "inc" / "acl"]
    headers = Headers(include)
    declared = {
        name: headers.functions(name)[0]
        for name in headers.names()
        if headers.functions(name)[0].file.name in ("acl_rt.h", "acl_base_rt.h")
    }
    assert len(declared) > 200
    # those that C++ overloads cannot be named without their types
    overloads = set(re.findall(r"(acl\w+)\(", (include[1] / "acl_rt_api.h").read_text()))
    names = [name for name in declared if name not in overloads]
    found = ask_compiler(compiler, tmp_path, prologue=ACL, functions=names, include=include)
    assert found == {name: list(declared[name].words) for name in names}


def test_the_reader_agrees_with_a_compiler_on_ours(
    compiler: str, folder: Path, tmp_path: Path
) -> None:
    """Functions, those of a pointer type, constants and codes are to a compiler what we have."""
    include = [folder / "acl" / "inc", folder / "acl" / "inc" / "acl"]
    named = [symbol.name for symbol in SYMBOLS if symbol.source == "header"]
    pointers = [symbol.name for symbol in SYMBOLS if symbol.source == "typedef"]
    plugin = (folder / "op-plugin/op_plugin/utils/op_api_common_base.h").read_text()
    prologue = ACL + "struct aclTensor;\n"
    for name in pointers:
        typedef = re.search(rf"typedef [^;]*\(\*_{name}\)\([^;]*\);", plugin)
        assert typedef is not None, f"{name} is no typedef of op-plugin"
        # a type is described by a function that has it
        prologue += typedef[0] + f"\nextern std::remove_pointer_t<_{name}> is_{name};\n"
    values = {constant.name: constant.value for constant in CONSTANTS}
    values |= {m.name: code for code, m in MEANINGS.items() if m.name.startswith("ACL_ERROR_RT")}
    found = ask_compiler(
        compiler,
        tmp_path,
        prologue=prologue,
        functions=[*named, *(f"is_{name}" for name in pointers)],
        values=values,
        include=include,
    )
    ours = {symbol.name: list(words_of(symbol.restype, symbol.argtypes)) for symbol in SYMBOLS}
    assert {name: found.pop(name) for name in values} == values
    assert {name.removeprefix("is_"): words for name, words in found.items()} == {
        name: ours[name] for name in (*named, *pointers)
    }


def test_every_function_has_types() -> None:
    """Without argtypes and restype ctypes cuts pointers to 32 bits."""
    for symbol in FUNCTIONS:
        assert symbol.restype is not None
        assert isinstance(symbol.argtypes, tuple)
    assert len({symbol.name for symbol in FUNCTIONS}) == len(FUNCTIONS)
