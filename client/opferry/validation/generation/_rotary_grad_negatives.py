"""Calls of ApplyRotaryPosEmbGrad that break one rule of the contract each."""

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

_OPERATOR = OPERATORS["ApplyRotaryPosEmbGrad"]
_LAYOUTS = (Layout.BSND, Layout.SBND, Layout.TND)
_GRADIENTS = ("grad_query_embed", "grad_key_embed")
_TABLES = ("cos", "sin")
_QUERY, _KEY = ("grad_query_embed", "query"), ("grad_key_embed", "key")
_ALL = (*_GRADIENTS, *_TABLES, "query", "key")
_HEADS = {"grad_query_embed": 4, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 4, "key": 2}


def grad_negative_rows() -> Iterator[GeneratedRow]:
    """Yield the rows; each call breaks one rule, in the order of the device's own checks."""
    rules = (_missing, _attributes, _dtypes, _axes, _pairs, _widths, _extents, _ranks, _tables)
    return rows_of(case for rule in rules for case in rule())


def _valid(layout: Layout = Layout.BSND) -> Broken:
    return Broken.of(_OPERATOR, _HEADS, layout)


def _missing() -> Cases:
    for name in (*_GRADIENTS, *_TABLES):
        call = _valid().without(name)
        yield f"{name} is missing", replace(call, status=ACLNN_ERR_PARAM_NULLPTR)
    for layout in _LAYOUTS:
        yield f"query without key in {layout.name}", _valid(layout).without("key")
        yield f"key without query in {layout.name}", _valid(layout).without("query")


def _attributes() -> Cases:
    for mode in ("interleave", "quarter", "HALF", "rotate", ""):
        yield (
            f"rotary_mode {mode or 'empty'}",
            replace(_valid(), attributes={"rotary_mode": mode}),
        )
    for number in (0, 3, 5, -1):
        yield f"layout {number}", replace(_valid(), attributes={"layout": number})
    yield from spellings(_valid())


def _dtypes() -> Cases:
    return other_dtypes(_valid())


def _axes() -> Cases:
    call = _valid()
    yield from other_axis_counts(call)
    for name in _GRADIENTS:
        pair = _QUERY if name == _QUERY[0] else _KEY
        less = {other: call.shapes[other][1:] for other in pair}
        yield f"{name} of 3 axes beside 4", call.shaped(less)


def _pairs() -> Cases:
    for layout in _LAYOUTS:
        call, position = _valid(layout), "T" if layout is Layout.TND else "S"
        yield f"sin shorter than cos in {layout.name}", call.sized(position, 2, "sin")
        yield f"query longer than its gradient in {layout.name}", call.sized(position, 7, "query")
        yield f"key with fewer heads than its gradient in {layout.name}", call.sized("N", 1, "key")


def _widths() -> Cases:
    for layout in _LAYOUTS:
        call = _valid(layout)
        yield f"D of cos and sin differs in {layout.name}", call.sized("D", 4, *_TABLES)
        yield f"D of grad_key_embed and key differs in {layout.name}", call.sized("D", 16, *_KEY)
        yield (
            f"D of grad_query_embed and query differs in {layout.name}",
            call.sized("D", 4, *_QUERY),
        )
        yield f"D over {MAX_WIDTH} in {layout.name}", call.sized("D", MAX_WIDTH + 2, *_ALL)
        yield f"D of 7 is odd in {layout.name}", call.sized("D", 7, *_ALL)
    yield "D of 1 is odd", _valid().sized("D", 1, *_ALL)
    yield f"D of {MAX_WIDTH - 1} is odd", _valid().sized("D", MAX_WIDTH - 1, *_ALL)


def _extents() -> Cases:
    for layout in _LAYOUTS:
        for axis in layout.axes[:-2]:
            call = _valid(layout)
            yield f"{axis} of the key differs in {layout.name}", call.sized(axis, 2, *_KEY)
            yield f"{axis} of 0 in {layout.name}", call.sized(axis, 0, *_ALL)
        yield f"D of 0 in {layout.name}", _valid(layout).sized("D", 0, *_ALL)
        for names in (_QUERY, _KEY, _TABLES):
            yield f"N of {names[0]} is 0 in {layout.name}", _valid(layout).sized("N", 0, *names)


def _ranks() -> Cases:
    for layout, other in ((1, Layout.TND), (2, Layout.TND), (4, Layout.BSND)):
        yield (
            f"layout {layout} with the axes of {other.name}",
            replace(_valid(other), attributes={"layout": layout}),
        )


def _tables() -> Cases:
    for layout in _LAYOUTS:
        call = _valid(layout)
        yield f"cos with 2 heads in {layout.name}", call.sized("N", 2, *_TABLES)
        yield f"cos with the query's heads in {layout.name}", call.sized("N", 4, *_TABLES)
        for axis in layout.axes[:-2]:
            what = f"{axis} of cos"
            yield f"{what} is short in {layout.name}", call.sized(axis, 2, *_TABLES)
            if axis != "B":
                yield f"{what} is 1 in {layout.name}", call.sized(axis, 1, *_TABLES)
