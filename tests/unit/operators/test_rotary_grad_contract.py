"""The contract of ApplyRotaryPosEmbGrad: every rule, its words, and the order of the rules."""

from __future__ import annotations

from itertools import combinations

import pytest

from opferry.core.problems import Reason
from opferry.operators import operator_named
from tests.support.contract_rules import (
    NULL,
    Given,
    Rule,
    Valid,
    assert_refused_in_its_words,
    assert_reported_before,
    attribute,
    cos_in_float32,
    cos_shape,
    drop,
    extra,
    ranked,
    refusal,
    size,
    wider,
)

VALID = Valid(
    operator_named("ApplyRotaryPosEmbGrad"),
    {"grad_query_embed": 4, "grad_key_embed": 5, "cos": 1, "sin": 1, "query": 4, "key": 5},
    {"rotary_mode": "half"},
)

COS = ("cos", "sin")
QUERY = ("grad_query_embed", "query")
KEY = ("grad_key_embed", "key")
SHAPE, MISSING = Reason.SHAPE_MISMATCH, Reason.INPUT_MISSING

ORDER: dict[str, Rule] = {
    "required input": Rule(
        drop("grad_key_embed"),
        MISSING,
        "grad_key_embed",
        "grad_key_embed is missing",
        "requires it",
        status=NULL,
    ),
    "unknown input": Rule(
        extra, Reason.INPUT_UNKNOWN, "position", "'position'", "is unknown to", status=None
    ),
    "rotary_mode": Rule(
        attribute("rotary_mode", "interleave"),
        Reason.ROTARY_MODE_NOT_SUPPORTED,
        "rotary_mode",
        "rotary_mode is 'interleave'",
        "only half is supported",
    ),
    "layout": Rule(
        attribute("layout", 3),
        Reason.LAYOUT_NOT_SUPPORTED,
        "layout",
        "layout 3 (BNSD) is reserved and not supported; give 1 (BSND), 2 (SBND), 4 (TND)",
        "is reserved",
    ),
    "both or neither": Rule(
        drop("key"), MISSING, "key", "query is given without key", "is given without"
    ),
    "dtype": Rule(
        cos_in_float32,
        Reason.DTYPE_NOT_ALLOWED,
        "cos",
        "cos has dtype float32, grad_query_embed has bfloat16",
        "all tensors need one dtype",
    ),
    "number of axes": Rule(
        ranked(5, *KEY), SHAPE, "grad_key_embed", "has 5 axes", "every layout needs 3 or 4"
    ),
    "cos as sin": Rule(
        size(0, 1, "sin"),
        SHAPE,
        "sin",
        "has shape [1, 3, 1, 8], cos has [2, 3, 1, 8]",
        "they must be equal",
    ),
    "optional shapes": Rule(
        size(1, 7, "query"),
        SHAPE,
        "query",
        "has shape [2, 7, 4, 8], grad_query_embed has [2, 3, 4, 8]",
        "they must be equal",
    ),
    "rank as cos": Rule(
        ranked(3, *KEY), SHAPE, "grad_key_embed", "has 3 axes, cos has 4", "needs the same number"
    ),
    "equal D": Rule(
        wider(2, *COS),
        SHAPE,
        "cos",
        "D = 10 (last axis), grad_query_embed has 8",
        "D must be the same in every tensor",
    ),
    "D limit": Rule(wider(1018), SHAPE, "grad_query_embed", "width D = 1026", "D is at most 1024"),
    "even D": Rule(wider(-1), SHAPE, "grad_query_embed", "width D = 7", "D must be even"),
    "grad_key as grad_query": Rule(
        size(1, 9, *KEY),
        SHAPE,
        "grad_key_embed",
        "has shape [2, 9, 5, 8], grad_query_embed has [2, 3, 4, 8]",
        "may differ in the head axis N only",
    ),
    "sizes": Rule(
        size(2, 0, *QUERY), SHAPE, "grad_query_embed", "[2, 3, 0, 8]", "no axis may be 0 or less"
    ),
    "layout against rank": Rule(
        attribute("layout", 4),
        SHAPE,
        "grad_query_embed",
        "has 4 axes",
        "layout TND needs 3 (tokens, head, width)",
    ),
    "cos N": Rule(size(2, 4, *COS), SHAPE, "cos", "has 4", "on the head axis N"),
    "cos S": Rule(size(1, 5, *COS), SHAPE, "cos", "has 5", "on the sequence axis S"),
    "cos B": Rule(size(0, 3, *COS), SHAPE, "cos", "must be 1 or 2", "on the batch axis B"),
}
"""The rules in the order of the device's own host code; each breaks none of the others."""

OTHERS: dict[str, Rule] = {
    **{
        f"missing {name}": Rule(drop(name), MISSING, name, f"{name} is missing", status=NULL)
        for name in ("grad_query_embed", "cos", "sin")
    },
    "key alone": Rule(drop("query"), MISSING, "query", "key is given without query"),
    "D = 0": Rule(wider(-8), SHAPE, "grad_query_embed", "no axis may be 0 or less"),
    "D = 3": Rule(wider(-5), SHAPE, "grad_query_embed", "D = 3; D must be even"),
    "negative B": Rule(
        size(0, -1, *QUERY, *KEY, *COS), SHAPE, "grad_query_embed", "[-1, 3, 4, 8]; no axis may be"
    ),
    "no axes": Rule(cos_shape(), SHAPE, "cos", "cos has 0 axes; every layout needs 3 or 4"),
    "one axis": Rule(cos_shape(8), SHAPE, "cos", "cos has 1 axis; every layout needs 3 or 4"),
    "BSND with 3 axes": Rule(
        attribute("layout", 1),
        SHAPE,
        "grad_query_embed",
        "has 3 axes; layout BSND needs 4 (batch, sequence, head, width)",
        layout=4,
    ),
    "key's own shape": Rule(size(2, 4, "key"), SHAPE, "key", "key has shape [2, 3, 4, 8], grad"),
    "full cos in SBND": Rule(
        size(2, 4, *QUERY, *KEY, *COS), SHAPE, "cos", "has 4 on the head axis N", layout=2
    ),
    "SBND B": Rule(
        size(1, 3, *COS), SHAPE, "cos", "has 3 on the batch axis B (shape [3, 3, 1, 8])", layout=2
    ),
    "SBND S": Rule(size(0, 5, *COS), SHAPE, "cos", "SBND it must be 3", layout=2),
    "SBND S of 1": Rule(size(0, 1, *COS), SHAPE, "cos", "sequence axis S", layout=2),
    "TND T": Rule(
        size(0, 5, *COS), SHAPE, "cos", "has 5 on the tokens axis T (shape [5, 1, 8])", layout=4
    ),
    "TND T of 1": Rule(size(0, 1, *COS), SHAPE, "cos", "TND it must be 6", layout=4),
    **{
        f"layout {number}": Rule(
            attribute("layout", number),
            Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN,
            "layout",
            "give 1 (BSND), 2 (SBND), 4 (TND)",
        )
        for number in (0, 5, -1, 99, 2**40)
    },
    **{
        f"rotary_mode {word!r}": Rule(
            attribute("rotary_mode", word), reason, "rotary_mode", "; only half is supported"
        )
        for word, reason in (
            ("quarter", Reason.ROTARY_MODE_NOT_SUPPORTED),
            ("HALF", Reason.ENUM_UNKNOWN),
            ("rotate_half" * 100, Reason.ENUM_UNKNOWN),
            ("", Reason.ENUM_NOT_SET),
        )
    },
}


@pytest.mark.parametrize("layout", [1, 2, 4])
@pytest.mark.parametrize("absent", [(), ("query", "key")])
def test_the_unbroken_call_is_valid(layout: int, absent: tuple[str, ...]) -> None:
    """The call that all tests start from passes, with and without query and key."""
    call = Given(VALID, layout)
    drop(*absent)(call)
    call.check()


@pytest.mark.parametrize("name", [*ORDER, *OTHERS])
def test_each_rule_is_refused_in_its_words(name: str) -> None:
    """A broken rule is refused with reason and status, naming argument, given and allowed."""
    assert_refused_in_its_words(VALID, {**ORDER, **OTHERS}[name])


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)))
def test_of_two_broken_rules_the_first_is_reported(first: str, second: str) -> None:
    """Whatever else is broken, the first rule in the device's order is the one reported."""
    assert_reported_before(VALID, ORDER[first], ORDER[second])


def test_sbnd_reports_the_batch_before_the_sequence() -> None:
    """In SBND the B axis of cos comes first; in BSND, as the table above says, the S axis."""
    rule = OTHERS["SBND B"]
    _, problem = refusal(VALID, rule, [rule.breaks, OTHERS["SBND S"].breaks])
    assert "on the batch axis B" in problem.message
