"""The twins: what one client has, the other has, and they differ by `await` only."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import pytest

import opferry
import opferry.aio
from opferry import Client
from opferry.aio import AsyncClient

CONTEXT = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
"""The protocol of `with`, and its twin."""


def public(kind: type) -> dict[str, Any]:
    """Return a class's public attributes, with those of the classes that it is made of."""
    return {
        name: value
        for base in reversed(kind.__mro__[:-1])
        for name, value in vars(base).items()
        if not name.startswith("_")
    }


METHODS = sorted(public(Client))


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    """Return name, kind, default and annotation of each parameter."""
    found = inspect.signature(function).parameters.values()
    return [(item.name, item.kind, item.default, item.annotation) for item in found]


def returned(function: Any) -> str:
    """Return what a function is annotated to return, under the synchronous name."""
    found = str(inspect.signature(function).return_annotation)
    return found.replace("AsyncClient", "Client").replace("AsyncIterator", "Iterator")


def documented(function: Any, section: str) -> list[str]:
    """Return the entries of a section of a docstring, such as "Raises"."""
    text = inspect.getdoc(function) or ""
    if f"\n{section}:\n" not in text:
        return []
    block = text.partition(f"\n{section}:\n")[2].split("\n\n")[0]
    lines = textwrap.dedent(block).splitlines()
    return [line.partition(":")[0] for line in lines if not line.startswith(" ")]


def instance_attributes(kind: type) -> set[str]:
    """Return the public attributes that the constructor sets."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if not node.attr.startswith("_")
    }


def test_same_public_names() -> None:
    """Both clients have the same public methods and attributes."""
    assert set(public(Client)) == set(public(AsyncClient))
    assert instance_attributes(Client) == instance_attributes(AsyncClient)


@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_same_signatures(name: str) -> None:
    """Each method has the same parameters, kinds, defaults, annotations and result."""
    ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
    assert parameters(ours) == parameters(theirs)
    assert returned(ours) == returned(theirs)


@pytest.mark.parametrize("name", METHODS)
def test_only_the_asynchronous_one_is_awaited(name: str) -> None:
    """Every method of the asynchronous client is a coroutine function, none of the other's is.

    What is for a `with` block is for an `async with` block there.
    """
    ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
    assert not inspect.iscoroutinefunction(ours)
    if inspect.isgeneratorfunction(inspect.unwrap(ours)) and hasattr(ours, "__wrapped__"):
        assert inspect.isasyncgenfunction(inspect.unwrap(theirs))
    else:
        assert inspect.iscoroutinefunction(theirs)


@pytest.mark.parametrize(("ours", "theirs"), CONTEXT.items())
def test_both_are_context_managers(ours: str, theirs: str) -> None:
    """`with` and `async with` take the same and give the same."""
    assert parameters(getattr(Client, ours)) == parameters(getattr(AsyncClient, theirs))
    assert returned(getattr(Client, ours)) == returned(getattr(AsyncClient, theirs))
    assert not hasattr(AsyncClient, ours)
    assert not hasattr(Client, theirs)


def test_connect_twins() -> None:
    """Both `connect` functions take the same and give each its client; neither is awaited."""
    assert parameters(opferry.connect) == parameters(opferry.aio.connect)
    assert returned(opferry.connect) == returned(opferry.aio.connect) == "Client"
    assert not inspect.iscoroutinefunction(opferry.aio.connect)


@pytest.mark.parametrize("name", METHODS)
def test_same_words(name: str) -> None:
    """The docstrings begin alike and document the same arguments and errors."""
    ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
    assert (inspect.getdoc(ours) or "").split("\n")[0] == (inspect.getdoc(theirs) or "").split(
        "\n"
    )[0]
    for section in ("Args", "Raises"):
        assert documented(ours, section) == documented(theirs, section)
