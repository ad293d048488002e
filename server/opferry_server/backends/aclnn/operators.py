"""How each operator is called: its C names and the order of its arguments. Data only."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from typing import Any, Literal, NamedTuple

from opferry.operators import OPERATORS
from opferry_server.backends.aclnn.symbols import Symbol


class Argument(NamedTuple):
    """One argument of a first stage."""

    kind: Literal["input", "in place", "output", "string", "int64"]
    """A tensor that is read, one that is overwritten, one that is written, or an attribute."""
    name: str
    """The operator's own parameter name."""

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.kind in ("input", "in place", "output")


class Binding(NamedTuple):
    """One operator in C."""

    operator: str
    """The operator's CANN name."""
    arguments: tuple[Argument, ...]
    """The first stage's arguments, without the workspace's size and the executor."""

    @property
    def function(self) -> str:
        """The second stage; the first has GetWorkspaceSize behind it."""
        return OPERATORS[self.operator].aclnn_name

    @property
    def in_place(self) -> dict[str, str]:
        """The inputs that are overwritten, by the outputs that they become."""
        outputs = OPERATORS[self.operator].outputs
        return {output.name: output.overwrites for output in outputs if output.overwrites}

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


def _tensors(kind: Literal["input", "in place", "output"], *names: str) -> tuple[Argument, ...]:
    return tuple(Argument(kind, name) for name in names)


BINDINGS: dict[str, Binding] = {
    binding.operator: binding
    for binding in (
        Binding(
            "ApplyRotaryPosEmbGrad",
            (
                *_tensors("input", "grad_query_embed", "grad_key_embed", "cos", "sin"),
                *_tensors("input", "query", "key"),
                Argument("string", "rotary_mode"),
                Argument("int64", "layout"),
                *_tensors("output", "grad_query", "grad_key", "grad_cos", "grad_sin"),
            ),
        ),
        Binding(
            "ApplyRotaryPosEmb",
            (
                *_tensors("in place", "query", "key"),
                *_tensors("input", "cos", "sin"),
                Argument("int64", "layout"),
                Argument("string", "rotary_mode"),
            ),
        ),
    )
}
"""Every operator that the backend can call, by its CANN name."""
