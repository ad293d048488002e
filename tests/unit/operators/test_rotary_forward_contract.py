"""The contract of ApplyRotaryPosEmb: every rule, its words, and the order of the rules."""

from __future__ import annotations

from itertools import combinations

import pytest

from opferry.core.problems import Problem, Reason
from opferry.operators.apply_rotary_pos_emb import APPLY_ROTARY_POS_EMB
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
    size,
    wider,
)

VALID = Valid(
    APPLY_ROTARY_POS_EMB,
    {"query": 4, "key": 5, "cos": 1, "sin": 1},
    {"rotary_mode": "quarter"},
)

COS = ("cos", "sin")
ALL = ("query", "key", *COS)
SHAPE, MISSING = Reason.SHAPE_MISMATCH, Reason.INPUT_MISSING

ORDER: dict[str, Rule] = {
    "required input": Rule(
        drop("key"), MISSING, "key", "key is missing", "requires it", status=NULL
    ),
    "unknown input": Rule(
        extra, Reason.INPUT_UNKNOWN, "position", "'position'", "is unknown to", status=None
    ),
    "layout": Rule(
        attribute("layout", 5),
        Reason.ENUM_UNKNOWN,
        "layout",
        "layout 5 is unknown; give 1 (BSND), 2 (SBND), 3 (BNSD), 4 (TND)",
        "is unknown; give",
    ),
    "rotary_mode": Rule(
        attribute("rotary_mode", "rotate"),
        Reason.ENUM_UNKNOWN,
        "rotary_mode",
        "rotary_mode is 'rotate'",
        "half, interleave and quarter are supported",
    ),
    "dtype": Rule(
        cos_in_float32,
        Reason.DTYPE_NOT_ALLOWED,
        "cos",
        "cos has dtype float32, query has bfloat16",
        "all tensors need one dtype",
    ),
    "number of axes": Rule(
        ranked(5, "key"), SHAPE, "key", "has 5 axes", "every layout needs 3 or 4"
    ),
    "layout against rank": Rule(
        ranked(3, "key"),
        SHAPE,
        "key",
        "has 3 axes",
        "layout BSND needs 4 (batch, sequence, head, width)",
    ),
    "cos as sin": Rule(
        size(0, 1, "sin"),
        SHAPE,
        "sin",
        "has shape [1, 3, 1, 8], cos has [2, 3, 1, 8]",
        "they must be equal",
    ),
    "cos N": Rule(size(2, 4, *COS), SHAPE, "cos", "has 4", "on the head axis N"),
    "cos S": Rule(size(1, 5, *COS), SHAPE, "cos", "has 5", "on the sequence axis S"),
    "key S": Rule(size(1, 7, "key"), SHAPE, "key", "has 7", "on the sequence axis S"),
    "cos D": Rule(
        wider(4, *COS), SHAPE, "cos", "D = 12 (last axis), query has 8", "rotates as many"
    ),
    "key D": Rule(
        wider(-4, "key"), SHAPE, "key", "D = 4 (last axis), query has 8", "the same in both"
    ),
    "key B": Rule(size(0, 3, "key"), SHAPE, "key", "must be 2", "on the batch axis B"),
    "cos B": Rule(size(0, 3, *COS), SHAPE, "cos", "must be 1 or 2", "on the batch axis B"),
    "D limit": Rule(wider(1020, *ALL), SHAPE, "query", "width D = 1028", "D is at most 1024"),
    "D of quarters": Rule(
        wider(2, *ALL),
        SHAPE,
        "query",
        "query has width D = 10",
        "a multiple of 4 with rotary_mode quarter",
    ),
    "rotated D": Rule(
        wider(-2, *COS),
        SHAPE,
        "cos",
        "cos has width D = 6",
        "a multiple of 4 with rotary_mode quarter",
    ),
    "sizes": Rule(size(2, 0, "query"), SHAPE, "query", "[2, 3, 0, 8]", "no axis may be 0 or less"),
}
"""The rules in the order of the device's own host code; each breaks none of the others."""


def _halves(by: int, *names: str) -> Rule:
    def breaks(call: Given) -> None:
        attribute("rotary_mode", "half")(call)
        wider(by, *names)(call)

    name = names[0]
    return Rule(breaks, SHAPE, name, f"{name} has width", "D must be even with rotary_mode half")


OTHERS: dict[str, Rule] = {
    **{
        f"missing {name}": Rule(drop(name), MISSING, name, f"{name} is missing", status=NULL)
        for name in ("query", "cos", "sin")
    },
    "odd D": _halves(1, *ALL),
    "odd rotated D": _halves(-1, *COS),
    "D = 0": Rule(wider(-8), SHAPE, "query", "no axis may be 0 or less"),
    "rotated D = 0": Rule(wider(-8, *COS), SHAPE, "cos", "no axis may be 0 or less"),
    "no axes": Rule(cos_shape(), SHAPE, "cos", "cos has 0 axes; every layout needs 3 or 4"),
    "TND with 4 axes": Rule(
        attribute("layout", 4),
        SHAPE,
        "query",
        "has 4 axes; layout TND needs 3 (tokens, head, width)",
    ),
    "BNSD's N of cos": Rule(size(1, 4, *COS), SHAPE, "cos", "has 4 on the head axis N", layout=3),
    "BNSD's S of cos": Rule(size(2, 1, *COS), SHAPE, "cos", "BNSD it must be 3", layout=3),
    "BNSD's S of key": Rule(size(2, 4, "key"), SHAPE, "key", "sequence axis S", layout=3),
    "SBND's B of cos": Rule(
        size(1, 3, *COS), SHAPE, "cos", "has 3 on the batch axis B (shape [3, 3, 1, 8])", layout=2
    ),
    "SBND's S of cos": Rule(size(0, 1, *COS), SHAPE, "cos", "SBND it must be 3", layout=2),
    "TND's T of cos": Rule(size(0, 1, *COS), SHAPE, "cos", "TND it must be 6", layout=4),
    "TND's T of key": Rule(size(0, 7, "key"), SHAPE, "key", "tokens axis T", layout=4),
    **{
        f"layout {number}": Rule(
            attribute("layout", number),
            Reason.ENUM_NOT_SET if number == 0 else Reason.ENUM_UNKNOWN,
            "layout",
            "give 1 (BSND), 2 (SBND), 3 (BNSD), 4 (TND)",
        )
        for number in (0, -1, 99, 2**40)
    },
    **{
        f"rotary_mode {word!r}": Rule(
            attribute("rotary_mode", word), reason, "rotary_mode", "; half, interleave and quarter"
        )
        for word, reason in (
            ("HALF", Reason.ENUM_UNKNOWN),
            ("rotate_half" * 100, Reason.ENUM_UNKNOWN),
            ("", Reason.ENUM_NOT_SET),
        )
    },
}


@pytest.mark.parametrize("layout", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter"])
@pytest.mark.parametrize("rotated", [8, 4])
def test_the_unbroken_call_is_valid(layout: int, mode: str, rotated: int) -> None:
    """The call that all tests start from passes, with all of D rotated, and with half of it."""
    call = Given(VALID, layout)
    attribute("rotary_mode", mode)(call)
    wider(rotated - 8, *COS)(call)
    call.check()


@pytest.mark.parametrize("name", [*ORDER, *OTHERS])
def test_each_rule_is_refused_in_its_words(name: str) -> None:
    """A broken rule is refused with reason and status, naming argument, given and allowed."""
    assert_refused_in_its_words(VALID, {**ORDER, **OTHERS}[name])


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)))
def test_of_two_broken_rules_the_first_is_reported(first: str, second: str) -> None:
    """Whatever else is broken, the first rule in the device's order is the one reported."""
    assert_reported_before(VALID, ORDER[first], ORDER[second])


@pytest.mark.parametrize(
    ("given", "number"),
    [("BSND", 1), ("BSH", 1), ("bsh", 1), ("SBND", 2), ("BNSD", 3), ("TND", 4), (3, 3), (None, 1)],
)
def test_layouts_by_word_and_number(given: object, number: int) -> None:
    """BSH is BSND by another name, as for the vendor's PyTorch function."""
    assert APPLY_ROTARY_POS_EMB.parse_attributes({"layout": given}).layout == number


def test_a_word_that_is_no_layout() -> None:
    """It is refused with all words that are."""
    with pytest.raises(Problem, match="known are BSND, SBND, BNSD, TND, BSH and their") as caught:
        APPLY_ROTARY_POS_EMB.parse_attributes({"layout": "NBSD"})
    assert caught.value.aclnn_status == 161002


def test_attributes_by_the_names_of_c() -> None:
    """The aclnn function's own spelling means the same, and both may be given if they agree."""
    same = {"rotary_mode": "interleave", "rotaryMode": "interleave", "layout": 3}
    assert APPLY_ROTARY_POS_EMB.parse_attributes(same).rotary_mode == "interleave"
    with pytest.raises(Problem, match="rotaryMode and rotary_mode are one attribute"):
        APPLY_ROTARY_POS_EMB.parse_attributes({**same, "rotaryMode": "half"})
    with pytest.raises(Problem, match="attribute 'rotaryModeOptional' is unknown"):
        APPLY_ROTARY_POS_EMB.parse_attributes({"rotaryModeOptional": "half"})
