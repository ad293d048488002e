"""Calls of the rotary operators that are valid, to be broken in one way each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.validation.generation._row import GeneratedRow

Shape = tuple[int, ...]

_SIZES = {"B": 3, "S": 5, "T": 15, "D": 8}


@dataclass(frozen=True)
class Broken:
    """A call in float32, valid until something of it is changed."""

    operator: Operator
    """The operator."""
    layout: Layout
    """The order of the axes."""
    shapes: Mapping[str, Shape]
    """The inputs that are there."""
    dtypes: Mapping[str, DType]
    """Their dtypes."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """What is not as it should be of the attributes."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What stands in the file for dtypes that there are no specs of."""
    status: int = ACLNN_ERR_PARAM_INVALID
    """The status that is expected."""

    @classmethod
    def of(cls, operator: Operator, heads: Mapping[str, int], layout: Layout) -> Broken:
        """Return the valid call.

        Args:
            operator: the operator.
            heads: N of each input.
            layout: the order of the axes.
        """
        shapes = {
            name: tuple(count if axis == "N" else _SIZES[axis] for axis in layout.axes)
            for name, count in heads.items()
        }
        return cls(operator, layout, shapes, dict.fromkeys(shapes, DType.FLOAT32))

    def without(self, *names: str) -> Broken:
        """Leave inputs out."""
        return replace(
            self, shapes={name: shape for name, shape in self.shapes.items() if name not in names}
        )

    def sized(self, axis: str, size: int, *names: str) -> Broken:
        """Give an axis another size in the named tensors."""
        place = self.layout.axes.index(axis)
        return self.shaped(
            {
                name: (*shape[:place], size, *shape[place + 1 :])
                for name, shape in self.shapes.items()
                if name in names
            }
        )

    def shaped(self, shapes: Mapping[str, Shape]) -> Broken:
        """Give tensors other shapes."""
        return replace(self, shapes={**self.shapes, **shapes})

    def typed(self, dtypes: Mapping[str, DType]) -> Broken:
        """Give tensors other dtypes."""
        return replace(self, dtypes={**self.dtypes, **dtypes})

    def row(self, number: int, what: str) -> GeneratedRow:
        """Return it as a row."""
        attributes = {"rotary_mode": "half", "layout": int(self.layout), **self.attributes}
        words = "".join(letter if letter.isalnum() else "_" for letter in what)
        return GeneratedRow(
            name=f"{self.operator.name}_negative_{number:03d}_{words}",
            operator=self.operator,
            attributes=attributes,
            inputs={name: TensorSpec(self.dtypes[name], s) for name, s in self.shapes.items()},
            remark=what,
            expected_status=self.status,
            dtype_words=self.words,
        )


Cases = Iterator[tuple[str, Broken]]
"""Calls, and what is wrong with each."""


def rows_of(cases: Iterable[tuple[str, Broken]]) -> Iterator[GeneratedRow]:
    """Yield the rows of calls."""
    for number, (what, call) in enumerate(cases):
        yield call.row(number, what)


def spellings(call: Broken) -> Cases:
    """Yield attributes that are wrong by their type, or a word that is none."""
    yield "layout by a name that is none", replace(call, attributes={"layout": "NSBD"})
    yield "layout is a truth value", replace(call, attributes={"layout": True})
    yield "rotary_mode is a number", replace(call, attributes={"rotary_mode": 1})


def other_dtypes(call: Broken) -> Cases:
    """Yield dtypes that differ, or are none that the operator takes."""
    leader, *others = call.shapes
    for name in others:
        yield f"{name} of float16 beside float32", call.typed({name: DType.FLOAT16})
    first = {**dict.fromkeys(call.shapes, DType.FLOAT16), leader: DType.BFLOAT16}
    yield f"{leader} of bfloat16 beside float16", call.typed(first)
    for word in ("float64", "int32", "complex64"):
        yield f"all of {word}", replace(call, words=dict.fromkeys(call.shapes, word))
    yield "sin of float64 beside float32", replace(call, words={"sin": "float64"})


def other_axis_counts(call: Broken) -> Cases:
    """Yield tensors with too few axes, and with too many."""
    for name, shape in call.shapes.items():
        yield f"{name} of 2 axes", call.shaped({name: shape[-2:]})
        yield f"{name} of 5 axes", call.shaped({name: (1, *shape)})
