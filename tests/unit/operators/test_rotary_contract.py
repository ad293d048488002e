"""The contract of ApplyRotaryPosEmbGrad: every rule, its words, and the order of the rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason, StatusCode
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named

OPERATOR = operator_named("ApplyRotaryPosEmbGrad")

NULL, INVALID = 161001, 161002
"""CANN's statuses for a missing tensor and for any other fault."""


class Given:
    """A valid call, with B = 2, S = 3, Nq = 4, Nk = 5 and D = 8, for tests to break."""

    def __init__(self, layout: int = 1) -> None:
        batch = {1: (2, 3), 2: (3, 2), 4: (6,)}[layout]
        heads = {"grad_query_embed": 4, "grad_key_embed": 5, "cos": 1, "sin": 1}
        heads |= {"query": 4, "key": 5}
        self.shapes = {name: [*batch, count, 8] for name, count in heads.items()}
        self.dtypes = dict.fromkeys(self.shapes, DType.BFLOAT16)
        self.attributes: dict[str, object] = {"rotary_mode": "half", "layout": layout}

    def set(self, axis: int, size: int, *names: str) -> None:
        """Give an axis another size in the named tensors that are there."""
        for name in names:
            if name in self.shapes:
                self.shapes[name][axis] = size

    def check(self) -> None:
        """Check the call against the contract."""
        specs = {
            name: TensorSpec(self.dtypes[name], tuple(shape)) for name, shape in self.shapes.items()
        }
        OPERATOR.check(specs, OPERATOR.parse_attributes(self.attributes))


class Rule(NamedTuple):
    """One rule: how to break it alone, what is then said, and which words are its own."""

    breaks: Callable[[Given], None]
    reason: Reason
    argument: str
    text: str
    words: str = ""
    status: int | None = INVALID
    layout: int = 1


def _drop(*names: str) -> Callable[[Given], None]:
    def breaks(call: Given) -> None:
        for name in names:
            call.shapes.pop(name, None)

    return breaks


def _attribute(name: str, value: object) -> Callable[[Given], None]:
    return lambda call: call.attributes.update({name: value})


def _size(axis: int, size: int, *names: str) -> Callable[[Given], None]:
    return lambda call: call.set(axis, size, *names)


def _wider(by: int, *names: str) -> Callable[[Given], None]:
    def breaks(call: Given) -> None:
        for name in names or call.shapes:
            call.shapes[name][-1] += by

    return breaks


def _ranked(axes: int, *names: str) -> Callable[[Given], None]:
    def breaks(call: Given) -> None:
        for name in names:
            if name in call.shapes:
                call.shapes[name] = ([1, 1] + call.shapes[name])[-axes:]

    return breaks


def _extra(call: Given) -> None:
    call.shapes["position"] = [1]
    call.dtypes["position"] = DType.BFLOAT16


def _cos_in_float32(call: Given) -> None:
    call.dtypes["cos"] = DType.FLOAT32


def _cos_shape(*shape: int) -> Callable[[Given], None]:
    return lambda call: call.shapes.update(cos=list(shape), sin=list(shape))


COS = ("cos", "sin")
QUERY = ("grad_query_embed", "query")
KEY = ("grad_key_embed", "key")
SHAPE, MISSING = Reason.SHAPE_MISMATCH, Reason.INPUT_MISSING

ORDER: dict[str, Rule] = {
    "required input": Rule(
        _drop("grad_key_embed"),
        MISSING,
        "grad_key_embed",
        "grad_key_embed is missing",
        "requires it",
        status=NULL,
    ),
    "unknown input": Rule(
        _extra, Reason.INPUT_UNKNOWN, "position", "'position'", "is unknown to", status=None
    ),
    "rotary_mode": Rule(
        _attribute("rotary_mode", "interleave"),
        Reason.ROTARY_MODE_NOT_SUPPORTED,
        "rotary_mode",
        "rotary_mode is 'interleave'",
        "only half is supported",
    ),
    "layout": Rule(
        _attribute("layout", 3),
        Reason.LAYOUT_NOT_SUPPORTED,
        "layout",
        "layout 3 (BNSD) is reserved and not supported; give 1 (BSND), 2 (SBND), 4 (TND)",
        "is reserved",
    ),
    "both or neither": Rule(
        _drop("key"), MISSING, "key", "query is given without key", "is given without"
    ),
    "dtype": Rule(
        _cos_in_float32,
        Reason.DTYPE_NOT_ALLOWED,
        "cos",
        "cos has dtype float32, grad_query_embed has bfloat16",
        "all tensors need one dtype",
    ),
    "number of axes": Rule(
        _ranked(5, *KEY), SHAPE, "grad_key_embed", "has 5 axes", "every layout needs 3 or 4"
    ),
    "cos as sin": Rule(
        _size(0, 1, "sin"),
        SHAPE,
        "sin",
        "has shape [1, 3, 1, 8], cos has [2, 3, 1, 8]",
        "they must be equal",
    ),
    "optional shapes": Rule(
        _size(1, 7, "query"),
        SHAPE,
        "query",
        "has shape [2, 7, 4, 8], grad_query_embed has [2, 3, 4, 8]",
        "they must be equal",
    ),
    "rank as cos": Rule(
        _ranked(3, *KEY), SHAPE, "grad_key_embed", "has 3 axes, cos has 4", "needs the same number"
    ),
    "equal D": Rule(
        _wider(2, *COS),
        SHAPE,
        "cos",
        "D = 10 (last axis), grad_query_embed has 8",
        "D must be the same in every tensor",
    ),
    "D limit": Rule(_wider(1018), SHAPE, "grad_query_embed", "width D = 1026", "D is at most 1024"),
    "even D": Rule(_wider(-1), SHAPE, "grad_query_embed", "width D = 7", "D must be even"),
    "grad_key as grad_query": Rule(
        _size(1, 9, *KEY),
        SHAPE,
        "grad_key_embed",
        "has shape [2, 9, 5, 8], grad_query_embed has [2, 3, 4, 8]",
        "may differ in the head axis N only",
    ),
    "sizes": Rule(
        _size(2, 0, *QUERY), SHAPE, "grad_query_embed", "[2, 3, 0, 8]", "no axis may be 0 or less"
    ),
    "layout against rank": Rule(
        _attribute("layout", 4),
        SHAPE,
        "grad_query_embed",
        "has 4 axes",
        "layout TND needs 3 (tokens, head, width)",
    ),
    "cos N": Rule(_size(2, 4, *COS), SHAPE, "cos", "has 4", "on the head axis N"),
    "cos S": Rule(_size(1, 5, *COS), SHAPE, "cos", "has 5", "on the sequence axis S"),
    "cos B": Rule(_size(0, 3, *COS), SHAPE, "cos", "must be 1 or 2", "on the batch axis B"),
}
"""The rules in the order of the device's own host code; each breaks none of the others."""

OTHERS: dict[str, Rule] = {
    **{
        f"missing {name}": Rule(_drop(name), MISSING, name, f"{name} is missing", status=NULL)
        for name in ("grad_query_embed", "cos", "sin")
    },
    "key alone": Rule(_drop("query"), MISSING, "query", "key is given without query"),
    "D = 0": Rule(_wider(-8), SHAPE, "grad_query_embed", "no axis may be 0 or less"),
    "D = 3": Rule(_wider(-5), SHAPE, "grad_query_embed", "D = 3; D must be even"),
    "negative B": Rule(
        _size(0, -1, *QUERY, *KEY, *COS), SHAPE, "grad_query_embed", "[-1, 3, 4, 8]; no axis may be"
    ),
    "no axes": Rule(_cos_shape(), SHAPE, "cos", "cos has 0 axes; every layout needs 3 or 4"),
    "one axis": Rule(_cos_shape(8), SHAPE, "cos", "cos has 1 axis; every layout needs 3 or 4"),
    "BSND with 3 axes": Rule(
        _attribute("layout", 1),
        SHAPE,
        "grad_query_embed",
        "has 3 axes; layout BSND needs 4 (batch, sequence, head, width)",
        layout=4,
    ),
    "key's own shape": Rule(_size(2, 4, "key"), SHAPE, "key", "key has shape [2, 3, 4, 8], grad"),
    "full cos in SBND": Rule(
        _size(2, 4, *QUERY, *KEY, *COS), SHAPE, "cos", "has 4 on the head axis N", layout=2
    ),
    "SBND B": Rule(
        _size(1, 3, *COS), SHAPE, "cos", "has 3 on the batch axis B (shape [3, 3, 1, 8])", layout=2
    ),
    "SBND S": Rule(_size(0, 5, *COS), SHAPE, "cos", "SBND it must be 3", layout=2),
    "SBND S of 1": Rule(_size(0, 1, *COS), SHAPE, "cos", "sequence axis S", layout=2),
    "TND T": Rule(
        _size(0, 5, *COS), SHAPE, "cos", "has 5 on the tokens axis T (shape [5, 1, 8])", layout=4
    ),
    "TND T of 1": Rule(_size(0, 1, *COS), SHAPE, "cos", "TND it must be 6", layout=4),
    **{
        f"layout {number}": Rule(
            _attribute("layout", number),
            Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN,
            "layout",
            "give 1 (BSND), 2 (SBND), 4 (TND)",
        )
        for number in (0, 5, -1, 99, 2**40)
    },
    **{
        f"rotary_mode {word!r}": Rule(
            _attribute("rotary_mode", word), reason, "rotary_mode", "; only half is supported"
        )
        for word, reason in (
            ("quarter", Reason.ROTARY_MODE_NOT_SUPPORTED),
            ("HALF", Reason.ENUM_UNKNOWN),
            ("rotate_half" * 100, Reason.ENUM_UNKNOWN),
            ("", Reason.ENUM_NOT_SET),
        )
    },
}


def _refusal(rule: Rule, *steps: Callable[[Given], None]) -> tuple[Given, Problem]:
    call = Given(rule.layout)
    for step in steps:
        step(call)
    with pytest.raises(Problem) as caught:
        call.check()
    return call, caught.value


@pytest.mark.parametrize("layout", [1, 2, 4])
@pytest.mark.parametrize("absent", [(), ("query", "key")])
def test_the_unbroken_call_is_valid(layout: int, absent: tuple[str, ...]) -> None:
    """The call that all tests start from passes, with and without query and key."""
    call = Given(layout)
    _drop(*absent)(call)
    call.check()


@pytest.mark.parametrize("name", [*ORDER, *OTHERS])
def test_each_rule_is_refused_in_its_words(name: str) -> None:
    """A broken rule is refused with reason and status, naming argument, given and allowed."""
    rule = {**ORDER, **OTHERS}[name]
    call, problem = _refusal(rule, rule.breaks)
    assert (problem.reason, problem.argument) == (rule.reason, rule.argument)
    assert rule.text in problem.message
    assert rule.words in problem.message
    assert rule.argument in problem.message
    assert (problem.aclnn_status, problem.status) == (rule.status, StatusCode.INVALID_ARGUMENT)
    if rule.reason is SHAPE:
        assert problem.given == str(call.shapes[rule.argument])
    assert (problem.allowed is None) == (rule.reason is MISSING)
    assert len(problem.message) < 300


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)))
def test_of_two_broken_rules_the_first_is_reported(first: str, second: str) -> None:
    """Whatever else is broken, the first rule in the device's order is the one reported."""
    rule = ORDER[first]
    _, problem = _refusal(rule, ORDER[second].breaks, rule.breaks)
    assert (problem.reason, problem.argument) == (rule.reason, rule.argument)
    assert rule.words in problem.message


def test_sbnd_reports_the_batch_before_the_sequence() -> None:
    """In SBND the B axis of cos comes first; in BSND, as the table above says, the S axis."""
    _, problem = _refusal(OTHERS["SBND B"], OTHERS["SBND B"].breaks, OTHERS["SBND S"].breaks)
    assert "on the batch axis B" in problem.message
