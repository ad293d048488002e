"""How each operator is called through cann_ops_transformer. Data, and words for attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opferry.core.layouts import Layout


class Function(NamedTuple):
    """One operator's function in cann_ops_transformer.ops."""

    name: str
    """Its name there."""
    positional: tuple[str, ...]
    """The inputs that it takes by position."""
    optional: tuple[str, ...]
    """The inputs that it takes by name, None if absent."""
    attributes: tuple[str, ...]
    """The attributes, taken by name."""
    outputs: tuple[str, ...]
    """What it returns; with optional inputs absent, some of it is never written."""
    words: Mapping[str, Callable[[Any], Any]] = {}
    """How attributes are said there, where it is in other words than here."""

    def word(self, attribute: str, value: Any) -> Any:
        """Return an attribute's value as the function takes it."""
        return self.words[attribute](value) if attribute in self.words else value


def _layout_word(number: int) -> str:
    """Return a layout's name; a number that has none as it is, for the wrapper to refuse."""
    return Layout(number).name if number in [int(each) for each in Layout] else str(number)


FUNCTIONS = {
    "ApplyRotaryPosEmbGrad": Function(
        "apply_rotary_pos_emb_grad",
        ("grad_query_embed", "grad_key_embed", "cos", "sin"),
        ("query", "key"),
        ("rotary_mode", "layout"),
        ("grad_query", "grad_key", "grad_cos", "grad_sin"),
    ),
    "ApplyRotaryPosEmb": Function(
        "apply_rotary_pos_emb",
        ("query", "key", "cos", "sin"),
        (),
        ("layout", "rotary_mode"),
        ("query_out", "key_out"),
        {"layout": _layout_word},
    ),
}
"""Every operator that the backend can call, by its CANN name."""
