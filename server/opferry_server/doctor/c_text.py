"""Small tools for C as text: comments, brackets, lists, attributes, numbers."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_MACRO = re.compile(r"#\s*define\s+(\w+)(\([^)]*\))?((?:\\\n|[^\n])*)")
_ATTRIBUTE = re.compile(r"\b(?:__attribute__|__declspec|_declspec|alignas|[A-Z_]*[A-Z]{2}\w*)\s*\(")
_CAST = re.compile(r"\(\s*(?:unsigned|signed|int|long|char|short|u?int\d+_t|size_t|\s)+\)")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")


class Cleaned(NamedTuple):
    """A header as the reader wants it."""

    text: str
    """Without comments, strings and directives."""
    macros: dict[str, str]
    """What each macro without parameters stands for."""
    functions: frozenset[str]
    """The macros with parameters."""


def clean(text: str) -> Cleaned:
    """Take a header's comments, strings and directives away; both branches of an #if stay."""
    text = text.replace("\r\n", "\n")
    plain = _COMMENT_OR_STRING.sub(lambda found: '""' if found[0][0] == '"' else " ", text)
    macros: dict[str, str] = {}
    functions: set[str] = set()
    for line in _DIRECTIVE.findall(plain):
        macro = _MACRO.match(line.strip())
        if macro and macro[2]:
            functions.add(macro[1])
        elif macro:
            # of several definitions the first that says something
            macros[macro[1]] = macros.get(macro[1]) or macro[3].replace("\\\n", " ").strip()
    return Cleaned(_DIRECTIVE.sub("", plain), macros, frozenset(functions))


def closing(text: str, start: int) -> int:
    """Return the index behind the bracket that closes the one at *start*; the end if none does."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
            if depth == 0:
                return index + 1
    return len(text)


def split_commas(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def without_attributes(text: str) -> str:
    """Take away attributes, macros in capitals with arguments, and strings."""
    text = re.sub(r'\[\[.*?\]\]|""', " ", text)
    while found := _ATTRIBUTE.search(text):
        end = closing(text, found.end() - 1)
        text = f"{text[: found.start()]} {text[end:]}"
    return text


_OPERATORS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def evaluate(expression: str, number_of: Callable[[str], int]) -> int:
    """Return the value of a constant expression of integers.

    Args:
        expression: as C has it.
        number_of: returns the value of another constant; raises ValueError.

    Raises:
        ValueError: if it is none, or not one of the kind that headers have.
    """

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return number_of(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = value(node.left), value(node.right)
            if not isinstance(node.op, ast.LShift) or 0 <= right < 64:
                return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.operand))
        raise ValueError(f"{expression} is no sum of integers")

    plain = _SUFFIX.sub(r"\1", _CAST.sub("", expression)).strip()
    try:
        return value(ast.parse(plain, mode="eval").body)
    except (SyntaxError, RecursionError) as err:
        raise ValueError(f"{expression} is no expression of integers") from err
