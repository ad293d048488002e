"""How each operator is called: its C names and the order of its arguments. Data only."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from typing import Any, Literal, NamedTuple

from opferry_server.backends.aclnn.symbols import Symbol


class Argument(NamedTuple):
    """One argument of a first stage."""

    kind: Literal["input", "output", "string", "int64"]
    """A tensor that is read, one that is written, or an attribute."""
    name: str
    """The operator's own parameter name."""


class Binding(NamedTuple):
    """One operator in C."""

    operator: str
    """The operator's CANN name."""
    function: str
    """The second stage; the first has GetWorkspaceSize behind it."""
    arguments: tuple[Argument, ...]
    """The first stage's arguments, without the workspace's size and the executor."""

    @property
    def stages(self) -> tuple[Symbol, Symbol]:
        """The two functions."""
        types: dict[str, Any] = {"string": c_char_p, "int64": c_int64}
        given = [types.get(argument.kind, c_void_p) for argument in self.arguments]
        first = (*given, POINTER(c_uint64), POINTER(c_void_p))
        second = (c_void_p, c_uint64, c_void_p, c_void_p)
        name = f"{self.function}GetWorkspaceSize"
        return (
            Symbol(name, "operators", c_int, first, "document"),
            Symbol(self.function, "operators", c_int, second, "document"),
        )


def _tensors(kind: Literal["input", "output"], *names: str) -> tuple[Argument, ...]:
    return tuple(Argument(kind, name) for name in names)


BINDINGS: dict[str, Binding] = {
    binding.operator: binding
    for binding in (
        Binding(
            "ApplyRotaryPosEmbGrad",
            "aclnnApplyRotaryPosEmbGrad",
            (
                *_tensors("input", "grad_query_embed", "grad_key_embed", "cos", "sin"),
                *_tensors("input", "query", "key"),
                Argument("string", "rotary_mode"),
                Argument("int64", "layout"),
                *_tensors("output", "grad_query", "grad_key", "grad_cos", "grad_sin"),
            ),
        ),
    )
}
"""Every operator that the backend can call, by its CANN name."""
