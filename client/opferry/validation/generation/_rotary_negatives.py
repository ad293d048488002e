"""Calls of ApplyRotaryPosEmbGrad that break one rule of the contract each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_NULLPTR
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS
from opferry.operators._rotary_contract import MAX_WIDTH
from opferry.validation.generation._row import GeneratedRow

Shape = tuple[int, ...]

_OPERATOR = OPERATORS["ApplyRotaryPosEmbGrad"]
_LAYOUTS = (Layout.BSND, Layout.SBND, Layout.TND)
_GRADIENTS = ("grad_query_embed", "grad_key_embed")
_TABLES = ("cos", "sin")
_QUERY, _KEY = ("grad_query_embed", "query"), ("grad_key_embed", "key")
_ALL = (*_GRADIENTS, *_TABLES, "query", "key")
_SIZES = {"B": 3, "S": 5, "T": 15, "D": 8}
_HEADS = {"grad_query_embed": 4, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 4, "key": 2}


@dataclass(frozen=True)
class _Broken:
    """A valid call, to be broken."""

    layout: Layout = Layout.BSND
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    dtypes: Mapping[str, DType] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    status: int = ACLNN_ERR_PARAM_INVALID

    @classmethod
    def of(cls, layout: Layout = Layout.BSND) -> _Broken:
        shapes = {
            name: tuple(heads if axis == "N" else _SIZES[axis] for axis in layout.axes)
            for name, heads in _HEADS.items()
        }
        return cls(layout, shapes, dict.fromkeys(shapes, DType.FLOAT32))

    def without(self, *names: str) -> _Broken:
        return replace(
            self, shapes={name: shape for name, shape in self.shapes.items() if name not in names}
        )

    def sized(self, axis: str, size: int, *names: str) -> _Broken:
        """Give an axis another size in the named tensors."""
        place = self.layout.axes.index(axis)
        return self.shaped(
            {
                name: (*shape[:place], size, *shape[place + 1 :])
                for name, shape in self.shapes.items()
                if name in names
            }
        )

    def shaped(self, shapes: Mapping[str, Shape]) -> _Broken:
        return replace(self, shapes={**self.shapes, **shapes})

    def row(self, number: int, what: str) -> GeneratedRow:
        attributes = {"rotary_mode": "half", "layout": int(self.layout), **self.attributes}
        words = "".join(letter if letter.isalnum() else "_" for letter in what)
        return GeneratedRow(
            name=f"{_OPERATOR.name}_negative_{number:03d}_{words}",
            operator=_OPERATOR,
            attributes=attributes,
            inputs={name: TensorSpec(self.dtypes[name], s) for name, s in self.shapes.items()},
            remark=what,
            expected_status=self.status,
            dtype_words=self.words,
        )


def rotary_negative_rows() -> Iterator[GeneratedRow]:
    """Yield the rows; each call breaks one rule, in the order of the device's own checks."""
    rules = (_missing, _attributes, _dtypes, _axes, _pairs, _widths, _extents, _ranks, _tables)
    cases = (case for rule in rules for case in rule())
    for number, (what, call) in enumerate(cases):
        yield call.row(number, what)


_Cases = Iterator[tuple[str, _Broken]]


def _missing() -> _Cases:
    for name in (*_GRADIENTS, *_TABLES):
        call = _Broken.of().without(name)
        yield f"{name} is missing", replace(call, status=ACLNN_ERR_PARAM_NULLPTR)
    for layout in _LAYOUTS:
        yield f"query without key in {layout.name}", _Broken.of(layout).without("key")
        yield f"key without query in {layout.name}", _Broken.of(layout).without("query")


def _attributes() -> _Cases:
    for mode in ("interleave", "quarter", "HALF", "rotate", ""):
        yield (
            f"rotary_mode {mode or 'empty'}",
            replace(_Broken.of(), attributes={"rotary_mode": mode}),
        )
    for number in (0, 3, 5, -1):
        yield f"layout {number}", replace(_Broken.of(), attributes={"layout": number})
    yield "layout by a name that is none", replace(_Broken.of(), attributes={"layout": "NSBD"})
    yield "layout is a truth value", replace(_Broken.of(), attributes={"layout": True})
    yield "rotary_mode is a number", replace(_Broken.of(), attributes={"rotary_mode": 1})


def _dtypes() -> _Cases:
    for name in _ALL[1:]:
        call = _Broken.of()
        yield (
            f"{name} of float16 beside float32",
            replace(call, dtypes={**call.dtypes, name: DType.FLOAT16}),
        )
    call = _Broken.of()
    first = {**dict.fromkeys(_ALL, DType.FLOAT16), "grad_query_embed": DType.BFLOAT16}
    yield "grad_query_embed of bfloat16 beside float16", replace(call, dtypes=first)
    for word in ("float64", "int32", "complex64"):
        yield f"all of {word}", replace(call, words=dict.fromkeys(_ALL, word))
    yield "sin of float64 beside float32", replace(call, words={"sin": "float64"})


def _axes() -> _Cases:
    call = _Broken.of()
    for name in _ALL:
        yield f"{name} of 2 axes", call.shaped({name: call.shapes[name][-2:]})
        yield f"{name} of 5 axes", call.shaped({name: (1, *call.shapes[name])})
    for name in _GRADIENTS:
        pair = _QUERY if name == _QUERY[0] else _KEY
        less = {other: call.shapes[other][1:] for other in pair}
        yield f"{name} of 3 axes beside 4", call.shaped(less)


def _pairs() -> _Cases:
    for layout in _LAYOUTS:
        call, position = _Broken.of(layout), "T" if layout is Layout.TND else "S"
        yield f"sin shorter than cos in {layout.name}", call.sized(position, 2, "sin")
        yield f"query longer than its gradient in {layout.name}", call.sized(position, 7, "query")
        yield f"key with fewer heads than its gradient in {layout.name}", call.sized("N", 1, "key")


def _widths() -> _Cases:
    for layout in _LAYOUTS:
        call = _Broken.of(layout)
        yield f"D of cos and sin differs in {layout.name}", call.sized("D", 4, *_TABLES)
        yield f"D of grad_key_embed and key differs in {layout.name}", call.sized("D", 16, *_KEY)
        yield (
            f"D of grad_query_embed and query differs in {layout.name}",
            call.sized("D", 4, *_QUERY),
        )
        yield f"D over {MAX_WIDTH} in {layout.name}", call.sized("D", MAX_WIDTH + 2, *_ALL)
        yield f"D of 7 is odd in {layout.name}", call.sized("D", 7, *_ALL)
    yield "D of 1 is odd", _Broken.of().sized("D", 1, *_ALL)
    yield f"D of {MAX_WIDTH - 1} is odd", _Broken.of().sized("D", MAX_WIDTH - 1, *_ALL)


def _extents() -> _Cases:
    for layout in _LAYOUTS:
        for axis in layout.axes[:-2]:
            call = _Broken.of(layout)
            yield f"{axis} of the key differs in {layout.name}", call.sized(axis, 2, *_KEY)
            yield f"{axis} of 0 in {layout.name}", call.sized(axis, 0, *_ALL)
        yield f"D of 0 in {layout.name}", _Broken.of(layout).sized("D", 0, *_ALL)
        for names in (_QUERY, _KEY, _TABLES):
            yield f"N of {names[0]} is 0 in {layout.name}", _Broken.of(layout).sized("N", 0, *names)


def _ranks() -> _Cases:
    for layout, other in ((1, Layout.TND), (2, Layout.TND), (4, Layout.BSND)):
        yield (
            f"layout {layout} with the axes of {other.name}",
            replace(_Broken.of(other), attributes={"layout": layout}),
        )


def _tables() -> _Cases:
    for layout in _LAYOUTS:
        call = _Broken.of(layout)
        yield f"cos with 2 heads in {layout.name}", call.sized("N", 2, *_TABLES)
        yield f"cos with the query's heads in {layout.name}", call.sized("N", 4, *_TABLES)
        for axis in layout.axes[:-2]:
            what = f"{axis} of cos"
            yield f"{what} is short in {layout.name}", call.sized(axis, 2, *_TABLES)
            if axis != "B":
                yield f"{what} is 1 in {layout.name}", call.sized(axis, 1, *_TABLES)
