"""Rules of a rotary operator's contract: calls to break, ways to break them, what is then said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason, StatusCode
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator

NULL, INVALID = 161001, 161002
"""CANN's statuses for a missing tensor and for any other fault."""

AXES = {1: "BSND", 2: "SBND", 3: "BNSD", 4: "TND"}


@dataclass(frozen=True)
class Valid:
    """Valid calls of an operator, with B = 2, S = 3, T = 6 and D = 8."""

    operator: Operator
    """The operator."""
    heads: Mapping[str, int]
    """N of each input."""
    attributes: Mapping[str, object] = field(default_factory=dict)
    """The attributes, without the layout."""


class Given:
    """A valid call, for tests to break."""

    def __init__(self, valid: Valid, layout: int = 1) -> None:
        self.operator = valid.operator
        self.axes = AXES[layout]
        sizes = {"B": 2, "S": 3, "T": 6, "D": 8}
        self.shapes = {
            name: [{**sizes, "N": count}[axis] for axis in self.axes]
            for name, count in valid.heads.items()
        }
        self.dtypes = dict.fromkeys(self.shapes, DType.BFLOAT16)
        self.attributes: dict[str, object] = {**valid.attributes, "layout": layout}

    def check(self) -> None:
        """Check the call against the contract."""
        specs = {
            name: TensorSpec(self.dtypes[name], tuple(shape)) for name, shape in self.shapes.items()
        }
        self.operator.check(specs, self.operator.parse_attributes(self.attributes))


Break = Callable[[Given], None]


class Rule(NamedTuple):
    """One rule: how to break it alone, what is then said, and which words are its own."""

    breaks: Break
    reason: Reason
    argument: str
    text: str
    words: str = ""
    status: int | None = INVALID
    layout: int = 1


def drop(*names: str) -> Break:
    """Leave inputs out."""

    def breaks(call: Given) -> None:
        for name in names:
            call.shapes.pop(name, None)

    return breaks


def attribute(name: str, value: object) -> Break:
    """Give an attribute another value."""
    return lambda call: call.attributes.update({name: value})


def size(axis: int, extent: int, *names: str) -> Break:
    """Give an axis another size in the named tensors that are there."""

    def breaks(call: Given) -> None:
        for name in names:
            if name in call.shapes:
                call.shapes[name][axis] = extent

    return breaks


def wider(by: int, *names: str) -> Break:
    """Make the last axis of the named tensors, or of all, longer."""

    def breaks(call: Given) -> None:
        for name in names or call.shapes:
            call.shapes[name][-1] += by

    return breaks


def ranked(axes: int, *names: str) -> Break:
    """Give the named tensors another number of axes."""

    def breaks(call: Given) -> None:
        for name in names:
            if name in call.shapes:
                call.shapes[name] = ([1, 1] + call.shapes[name])[-axes:]

    return breaks


def extra(call: Given) -> None:
    """Give an input that no operator has."""
    call.shapes["position"] = [1]
    call.dtypes["position"] = DType.BFLOAT16


def cos_in_float32(call: Given) -> None:
    """Give cos a dtype of its own."""
    call.dtypes["cos"] = DType.FLOAT32


def cos_shape(*shape: int) -> Break:
    """Give cos and sin another shape."""
    return lambda call: call.shapes.update(cos=list(shape), sin=list(shape))


def refusal(valid: Valid, rule: Rule, steps: Iterable[Break]) -> tuple[Given, Problem]:
    """Return a call that was broken in some ways, and its problem."""
    call = Given(valid, rule.layout)
    for step in steps:
        step(call)
    with pytest.raises(Problem) as caught:
        call.check()
    return call, caught.value


def assert_refused_in_its_words(valid: Valid, rule: Rule) -> None:
    """A broken rule is refused with reason and status, naming argument, given and allowed."""
    call, problem = refusal(valid, rule, [rule.breaks])
    assert (problem.reason, problem.argument) == (rule.reason, rule.argument)
    assert rule.text in problem.message
    assert rule.words in problem.message
    assert rule.argument in problem.message
    assert (problem.aclnn_status, problem.status) == (rule.status, StatusCode.INVALID_ARGUMENT)
    if rule.reason is Reason.SHAPE_MISMATCH:
        assert problem.given == str(call.shapes[rule.argument])
    assert (problem.allowed is None) == (rule.reason is Reason.INPUT_MISSING)
    assert len(problem.message) < 300


def assert_reported_before(valid: Valid, first: Rule, second: Rule) -> None:
    """Whatever else is broken, the first rule is the one reported."""
    _, problem = refusal(valid, first, [second.breaks, first.breaks])
    assert (problem.reason, problem.argument) == (first.reason, first.argument)
    assert first.words in problem.message
