"""The cells of TTK files: Python literals and the bare words inf and nan, read without eval.

A cell passes three gates: its length, a pattern that knows every allowed token (so that no operator
chain, call or attribute ever reaches the parser), and an allow-list of syntax nodes.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from opferry.validation.problems import CellError

MAX_CHARACTERS = 16 * 1024
"""The longest literal; one for ten tensors takes a few hundred."""

MAX_DEPTH = 8
"""The deepest nesting; a shape inside a tuple of tensors takes 2."""

ALLOWED = "tuples, lists, dicts, numbers, strings, None, True, False, inf and nan"
"""What a literal may be made of, as error texts name it."""

# After the alternatives for brackets and strings comes the signed number or word. No part can match
# the same text in two ways, so that the time stays linear in the length.
_TOKENS = re.compile(
    r"""(?:
        [\s()\[\]{},:]
      | '[^'\\\n]*' | "[^"\\\n]*"
      | [+-]?\s*
        (?: (?: \d[\d_]*(?:\.[\d_]*)? | \.\d[\d_]* ) (?:[eE][+-]?\d+)?
          | inf | nan | None | True | False
        ) (?![\w.])
    )*""",
    re.VERBOSE,
)
_WORDS = {"inf": math.inf, "nan": math.nan}


@lru_cache(maxsize=4096)  # most cells of a file repeat
def parse_literal(text: str) -> Any:
    """Return the value of a cell; lists become tuples, dicts read-only mappings.

    Args:
        text: the cell, not blank.

    Raises:
        CellError: saying what is not a literal, and where in the cell.
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise CellError(f"has {len(text)} characters; a literal has at most {MAX_CHARACTERS}")
    matched = _TOKENS.match(text)
    end = matched.end() if matched else 0
    if end < len(text):
        raise CellError(
            f"has {text[end : end + 20]!r} at character {end + 1}; allowed are {ALLOWED}"
        )
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        place = f" at character {error.offset}" if error.offset else ""
        raise CellError(f"is not a literal{place}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CellError("is not a literal: it is nested too deeply or malformed") from error
    return _value(tree.body, MAX_DEPTH)


def _value(node: ast.expr, depth: int) -> Any:
    if depth < 0:
        raise CellError(f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(item, depth - 1) for item in node.elts)
    if isinstance(node, ast.Dict):
        return _mapping(node, depth - 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand, depth - 1)
        if is_number(number):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Constant) and isinstance(
        node.value, str | bool | int | float | type(None)
    ):
        if isinstance(node.value, float) and math.isinf(node.value):
            raise CellError(f"has a number too large at character {node.col_offset + 1}; write inf")
        return node.value
    kind = type(node).__name__
    raise CellError(f"has a {kind} at character {node.col_offset + 1}; allowed are {ALLOWED}")


def _mapping(node: ast.Dict, depth: int) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        key = None if key_node is None else _value(key_node, depth)
        if not isinstance(key, str):
            raise CellError(f"has the key {key!r}; keys are names in quotes")
        if key in values:
            raise CellError(f"has the key {key!r} twice")
        values[key] = _value(value_node, depth)
    return MappingProxyType(values)


def is_number(value: object) -> bool:
    """Return whether a parsed value is an int or a float; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return a parsed value as an error text shows it: short, dicts as dicts."""
    text = repr(dict(value)) if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
