"""The public names: listed, sorted, complete, and there."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from importlib import metadata
from types import ModuleType

import pytest

import opferry
import opferry.aio
import opferry.errors
import opferry.reports
import opferry.validation
import opferry_server.testing
from tests.packaging.project import project

MODULES = [
    opferry,
    opferry.aio,
    opferry.errors,
    opferry.reports,
    opferry.validation,
    opferry_server.testing,
]

SUBMODULES = {"aio", "errors"}
"""What the package offers as modules."""


def style_order(name: str) -> tuple[int, str]:
    """Return the key of our order: constants, classes, then functions and modules."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def imported_here(module: ModuleType) -> dict[str, str]:
    """Return the names that a module imports from our packages, with where they come from."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("opferry"):
            for alias in node.names:
                found[alias.asname or alias.name] = node.module or ""
    return found


def defined_here(module: ModuleType) -> set[str]:
    """Return the public functions and classes that a module defines itself."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        if inspect.isfunction(value) or inspect.isclass(value)
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_list_is_sorted_and_every_name_is_there(module: ModuleType) -> None:
    """`__all__` names each public name once, in order, and each can be had."""
    names = module.__all__
    assert names == sorted(set(names), key=style_order)
    for name in names:
        assert getattr(module, name) is not None


def test_the_package_lists_all_it_offers() -> None:
    """The list holds all lazy names, the modules, what is defined there, and nothing else."""
    offered = set(opferry._HOMES) | SUBMODULES | defined_here(opferry)
    assert set(opferry.__all__) == offered
    assert offered <= set(dir(opferry))


def test_lazy_names_are_what_the_type_checker_sees() -> None:
    """Each lazy name comes from the module that the imports for the type checker name."""
    visible = imported_here(opferry)
    assert {name: visible[name] for name in opferry._HOMES} == opferry._HOMES
    for name, home in opferry._HOMES.items():
        value = getattr(opferry, name)
        assert value is getattr(importlib.import_module(home), name)
        assert value.__module__ == home


def test_modules_list_all_they_define() -> None:
    """Public classes of the errors, and all that the other modules define, are on their lists."""
    classes = {name for name in defined_here(opferry.errors) if name[0].isupper()}
    assert set(opferry.errors.__all__) == classes
    for module in (opferry.aio, opferry_server.testing):
        assert set(module.__all__) == defined_here(module)
    validation = opferry.validation
    assert set(validation.__all__) == set(imported_here(validation)) | defined_here(validation)


def test_an_unknown_name_is_refused() -> None:
    """The package raises an AttributeError that names what it does not have."""
    with pytest.raises(AttributeError, match="'opferry' has no attribute 'no_such_name'"):
        opferry.no_such_name  # noqa: B018 - reading it is the test


def test_star_import() -> None:
    """`from opferry import *` brings exactly the list."""
    brought: dict[str, object] = {}
    exec("from opferry import *", brought)  # noqa: S102 - no other place allows a star import
    assert set(brought) - {"__builtins__"} == set(opferry.__all__)


def test_version_is_the_project_s() -> None:
    """The installed metadata and `opferry --version` say what pyproject.toml says."""
    assert metadata.version("opferry") == project()["version"]
    said = subprocess.run(
        [sys.executable, "-m", "opferry.cli", "--version"], capture_output=True, text=True
    )
    assert said.stdout.split()[-1] == project()["version"]
