"""Calls of ApplyRotaryPosEmb that break one rule of the contract each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opferry.core.layouts import Layout
from opferry.core.problems import ACLNN_ERR_PARAM_NULLPTR
from opferry.operators import OPERATORS
from opferry.operators._rotary_rules import MAX_WIDTH
from opferry.validation.generation._rotary_broken import (
    Broken,
    Cases,
    other_axis_counts,
    other_dtypes,
    rows_of,
    spellings,
)
from opferry.validation.generation._row import GeneratedRow

_OPERATOR = OPERATORS["ApplyRotaryPosEmb"]
_TABLES = ("cos", "sin")
_ALL = ("query", "key", *_TABLES)
_HEADS = {"query": 4, "key": 2, "cos": 1, "sin": 1}


def forward_negative_rows() -> Iterator[GeneratedRow]:
    """Yield the rows; each call breaks one rule, in the order of the device's own checks."""
    rules = (_missing, _attributes, _dtypes, _axes, _tables, _positions, _widths, _batches)
    return rows_of(case for rule in (*rules, _multiples, _extents) for case in rule())


def _valid(layout: Layout = Layout.BSND) -> Broken:
    return Broken.of(_OPERATOR, _HEADS, layout)


def _missing() -> Cases:
    for name in _ALL:
        yield f"{name} is missing", replace(_valid().without(name), status=ACLNN_ERR_PARAM_NULLPTR)


def _attributes() -> Cases:
    for number in (0, 5, -1):
        yield f"layout {number}", replace(_valid(), attributes={"layout": number})
    for mode in ("HALF", "rotate", ""):
        yield f"rotary_mode {mode or 'empty'}", replace(_valid(), attributes={"rotary_mode": mode})
    yield from spellings(_valid())


def _dtypes() -> Cases:
    return other_dtypes(_valid())


def _axes() -> Cases:
    yield from other_axis_counts(_valid())
    for layout in Layout:
        other = Layout.BSND if layout is Layout.TND else Layout.TND
        yield (
            f"layout {layout.name} with the axes of {other.name}",
            replace(_valid(other), attributes={"layout": int(layout)}),
        )
    call = _valid()
    yield "key of 3 axes beside 4", call.shaped({"key": call.shapes["key"][1:]})


def _tables() -> Cases:
    for layout in Layout:
        call, position = _valid(layout), "T" if layout is Layout.TND else "S"
        yield f"sin shorter than cos in {layout.name}", call.sized(position, 2, "sin")
        yield f"sin narrower than cos in {layout.name}", call.sized("D", 4, "sin")
        for count in (2, 4):
            yield f"cos with {count} heads in {layout.name}", call.sized("N", count, *_TABLES)


def _positions() -> Cases:
    for layout in Layout:
        call, axis = _valid(layout), "T" if layout is Layout.TND else "S"
        for size in (1, 2):
            yield f"{axis} of cos is {size} in {layout.name}", call.sized(axis, size, *_TABLES)
        yield f"{axis} of key differs in {layout.name}", call.sized(axis, 7, "key")


def _widths() -> Cases:
    for layout in Layout:
        call = _valid(layout)
        yield f"cos wider than query in {layout.name}", call.sized("D", 12, *_TABLES)
        yield f"key narrower than query in {layout.name}", call.sized("D", 4, "key", *_TABLES)
        yield f"key wider than query in {layout.name}", call.sized("D", 16, "key")


def _batches() -> Cases:
    for layout in (Layout.BSND, Layout.SBND, Layout.BNSD):
        call = _valid(layout)
        yield f"B of key differs in {layout.name}", call.sized("B", 1, "key")
        yield f"B of cos is neither 1 nor query's in {layout.name}", call.sized("B", 2, *_TABLES)


def _multiples() -> Cases:
    for layout in Layout:
        call = _valid(layout)
        yield f"D over {MAX_WIDTH} in {layout.name}", call.sized("D", MAX_WIDTH + 4, *_ALL)
    for mode, wrong in (("half", 7), ("interleave", 7), ("quarter", 10)):
        call = replace(_valid(), attributes={"rotary_mode": mode})
        yield f"D of {wrong} in mode {mode}", call.sized("D", wrong, *_ALL)
        yield f"cos of width {wrong - 4} in mode {mode}", call.sized("D", wrong - 4, *_TABLES)


def _extents() -> Cases:
    for layout in Layout:
        call = _valid(layout)
        for axis in layout.axes:
            if axis != "N":
                yield f"{axis} of 0 in {layout.name}", call.sized(axis, 0, *_ALL)
        yield f"D of cos is 0 in {layout.name}", call.sized("D", 0, *_TABLES)
        for name in ("query", "key"):
            yield f"N of {name} is 0 in {layout.name}", call.sized("N", 0, name)
