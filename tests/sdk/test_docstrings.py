"""Every public name says what it is: classes, functions, arguments, fields and constants."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import pytest

import opferry
import opferry.aio
import opferry.errors
import opferry.validation
import opferry_server.testing
from opferry import Client
from opferry.aio import AsyncClient

MODULES = [opferry, opferry.aio, opferry.errors, opferry.validation, opferry_server.testing]


def public_names() -> dict[str, Any]:
    """Return all public names, with their module before the dot, and what they are."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in MODULES
        for name in module.__all__
    }


NAMES = public_names()
CLASSES = {name: value for name, value in NAMES.items() if inspect.isclass(value)}
FUNCTIONS = {
    name: value for name, value in NAMES.items() if inspect.isfunction(inspect.unwrap(value))
}
CONSTANTS = [
    name
    for name, value in NAMES.items()
    if name not in CLASSES and name not in FUNCTIONS and not isinstance(value, ModuleType)
]
METHODS = {
    f"{kind.__name__}.{name}": value
    for kind in (Client, AsyncClient)
    for base in kind.__mro__[:-1]
    for name, value in vars(base).items()
    if inspect.isfunction(value) and not name.startswith("_")
}


def is_sentence(text: str | None) -> bool:
    """Return whether the first paragraph of a text is a sentence."""
    first = (text or "").strip().split("\n\n")[0]
    return bool(re.match(r"\S", first)) and first.endswith((".", ":"))


def documented_arguments(text: str) -> dict[str, str]:
    """Return the arguments that a docstring's Args section names, with what it says of each."""
    block = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", text, flags=re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+):((?: .*|\n {8}.*)+)", block[1] if block else "", re.MULTILINE)
    return {name: said.strip() for name, said in entries}


def parameters(function: Any) -> list[str]:
    """Return the parameters that a caller gives."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls")]


@cache
def statements_with_texts(module: str) -> dict[str, str]:
    """Return each assigned name of a module, "Class.name" in a class, that a string follows."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(statement, ast.ClassDef):
                visit(statement.body, f"{prefix}{statement.name}.")
            if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
                continue
            for target in targets(statement):
                found[prefix + target] = str(following.value.value)

    visit(ast.parse(inspect.getsource(importlib.import_module(module))).body, "")
    return found


def targets(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement assigns."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (item.id for item in names if isinstance(item, ast.Name))


def modules_below(package: ModuleType) -> Iterator[str]:
    """Yield a package's name and those of its modules."""
    yield package.__name__
    for item in pkgutil.iter_modules(getattr(package, "__path__", []), f"{package.__name__}."):
        yield item.name


def undocumented_fields(kind: type) -> list[str]:
    """Return the dataclass fields of a class that no sentence of its source follows."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            of_module = statements_with_texts(base.__module__)
            prefix = f"{base.__qualname__}."
            own = {k.removeprefix(prefix): v for k, v in of_module.items() if k.startswith(prefix)}
            texts |= own
    return [
        item.name
        for item in dataclasses.fields(kind)
        if not is_sentence(texts.get(item.name) or item.metadata.get("help"))
    ]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_modules(module: ModuleType) -> None:
    """Every public module has a docstring."""
    assert is_sentence(module.__doc__)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_and_their_methods(name: str) -> None:
    """Every public class, and each of its public methods and properties, has a docstring."""
    kind = CLASSES[name]
    assert is_sentence(kind.__doc__)
    assert not (kind.__doc__ or "").startswith(f"{kind.__name__}("), "dataclass made this one up"
    for attribute, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not attribute.startswith("_") and isinstance(function, FunctionType | property):
            assert is_sentence(function.__doc__), attribute


@pytest.mark.parametrize(
    "name", [name for name, kind in CLASSES.items() if dataclasses.is_dataclass(kind)]
)
def test_dataclass_fields(name: str) -> None:
    """Each field of a public dataclass has a sentence below it."""
    assert undocumented_fields(CLASSES[name]) == []


@pytest.mark.parametrize("name", {**FUNCTIONS, **METHODS})
def test_functions_and_their_arguments(name: str) -> None:
    """Every public function and method of a client has a docstring that names each argument."""
    function = {**FUNCTIONS, **METHODS}[name]
    text = inspect.getdoc(function) or ""
    assert is_sentence(text)
    said = documented_arguments(text)
    assert list(said) == parameters(function)
    assert all(said.values())


@pytest.mark.parametrize("name", METHODS)
def test_client_methods_say_what_they_raise(name: str) -> None:
    """Each method that calls the server names the errors that it raises."""
    if name.split(".")[1] != "close":
        assert "\nRaises:\n" in (inspect.getdoc(METHODS[name]) or "")


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    """Every public constant and type has a sentence below it, in the module that defines it."""
    module, _, constant = name.rpartition(".")
    modules = modules_below(importlib.import_module(module))
    texts = [statements_with_texts(item).get(constant) for item in modules]
    assert any(is_sentence(text) for text in texts)


def test_error_fields() -> None:
    """The root of the errors documents every field that its constructor sets."""
    root = opferry.OpFerryError
    text = inspect.getdoc(root) or ""
    fields = [name for name in vars(root("text")) if not name.startswith("_")]
    assert fields == re.findall(r"^    (\w+): ", text.partition("Attributes:\n")[2], re.MULTILINE)


def test_the_reader_of_arguments() -> None:
    """Entries may run over lines; other sections and missing texts are no arguments."""
    text = "Do it.\n\nArgs:\n    one: a\n        b.\n    two:\n        c.\n\nRaises:\n    E: no.\n"
    assert documented_arguments(text) == {"one": "a\n        b.", "two": "c."}
    assert documented_arguments("Do it.\n\nRaises:\n    E: no.\n") == {}


@dataclasses.dataclass
class HalfSaid:
    """An example of what is found."""

    said: int
    """A sentence."""
    unsaid: int


def test_the_reader_of_fields() -> None:
    """A field without a sentence is found."""
    assert undocumented_fields(HalfSaid) == ["unsaid"]
