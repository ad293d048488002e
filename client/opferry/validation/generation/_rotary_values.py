"""Ranges of values for the inputs of the rotary operators, as literals.

A correct device may fuse a product with the sum, and may add heads and batches in another order.
Ranges are chosen so that neither decides over a verdict: where sums are taken, and in float32, no
value is so large that what rounding leaves after a cancellation is over the standard's floor; long
sums of float32 have one sign, because one element near 0 is over one percent of a small output;
sums of float16 stay finite; and finite values that overflow meet no value that they could cancel.
Infinities and NaN give the same in any order, and come everywhere.
"""

from __future__ import annotations

from opferry.core.dtypes import DType
from opferry.validation.generation._draws import Draws

SMALL = (
    *("(-2,2,)", "(-1,1,)", "(1,2,)", "(0.01,1,)", "(-1,-0.01,)", "(-2,-1,)", "(0,0.001,)"),
    *("(-0.001,0,)", "(0,1,)", "(-0.5,1.5,)", "(-3.0517578125e-05,3.0517578125e-05,)"),
)
"""Ranges of values up to 2."""

POSITIVE = ("(1,2,)", "(0.01,1,)", "(0,1,)", "(0,0.001,)")
"""Ranges of values up to 2 and not below 0."""

MEDIUM = (*SMALL, "(2,10,)", "(-10,-2,)", "(-10,10,)")
"""Ranges of values up to 10."""

LARGE = (*MEDIUM, "(10,1000,)", "(-1000,-10,)", "(-100,100,)")
"""Ranges of values up to 1000."""

CONSTANTS = ("(1,1,)", "(0,0,)", "(-1,-1,)", "(0.5,0.5,)", "(2,2,)")

NOT_FINITE = ("(inf,inf,)", "(-inf,-inf,)", "(nan,nan,)")
"""Every element is not finite."""

SOME_NOT_FINITE = ("(-2,2,inf,)", "(-2,2,-inf,)", "(-1,1,nan,)", "(1,2,inf,-inf,)", "(0,1,nan,0,)")
"""A value that is not finite occurs for certain."""

POSITIVE_BUT_SOME = ("(1,2,inf,)", "(0,1,nan,)", "(0.01,1,inf,-inf,)")
"""The same; all other values are not below 0."""

LONG_SUM = 64
"""From so many terms on a sum counts as long."""

LARGEST = {
    DType.FLOAT16: "65504",
    DType.BFLOAT16: "3.3895313892515355e+38",
    DType.FLOAT32: "3.4028234663852886e+38",
}
"""The largest finite value of each dtype."""

SMALLEST = {
    DType.FLOAT16: ("6.103515625e-05", "5.960464477539063e-08"),
    DType.BFLOAT16: ("1.1754943508222875e-38", "9.183549615799121e-41"),
    DType.FLOAT32: ("1.1754943508222875e-38", "1.401298464324817e-45"),
}
"""The smallest normal value and the smallest value of each dtype."""

DEFAULT, FINITE, CONSTANT, SPECIAL, EXTREME = "default", "random", "const", "infnan", "extreme"
FAMILIES = (*[DEFAULT] * 2, *[FINITE] * 7, CONSTANT, *[SPECIAL] * 4, *[EXTREME] * 2)
"""What kind of values a case has, each as often as it is to come."""

TABLES = ("cos", "sin")
OPTIONAL = ("query", "key")
"""The backward's, with which it takes sums."""


def draw_ranges(
    family: str,
    dtype: DType,
    draws: Draws,
    vectors: tuple[str, str],
    *,
    optional: bool = False,
    terms: int = 1,
) -> dict[str, str]:
    """Return a range for each input, or none where the default is meant.

    Args:
        family: one of `FAMILIES`.
        dtype: of the tensors.
        draws: the row's choices.
        vectors: the names of the two inputs that are rotated, or rotated back.
        optional: whether the backward's query and key are given.
        terms: how many products are added up for one element of grad_cos, at most.
    """
    names = (*vectors, *TABLES, *(OPTIONAL if optional else ()))
    one_sign = optional and dtype is DType.FLOAT32 and terms >= LONG_SUM
    if family == DEFAULT and not one_sign:
        return {}
    if family == CONSTANT:
        return {name: draws.one_of(CONSTANTS) for name in names}
    ranges = {name: draws.one_of(_finite(name, dtype, optional, one_sign)) for name in names}
    if family == SPECIAL:
        some = POSITIVE_BUT_SOME if one_sign else SOME_NOT_FINITE
        # one tensor for certain, the others now and then
        first = draws.below(len(names))
        for number, name in enumerate(names):
            if number == first or draws.below(4) == 0:
                ranges[name] = draws.one_of((*NOT_FINITE, *some))
    elif family == EXTREME:
        ranges |= _extreme(dtype, draws, vectors)
        if optional:
            # no sum of what may overflow
            ranges |= dict.fromkeys(OPTIONAL, "(0,0,)")
    return ranges


def _finite(name: str, dtype: DType, optional: bool, one_sign: bool) -> tuple[str, ...]:
    if one_sign and name not in TABLES:
        return POSITIVE
    if optional:
        return MEDIUM if dtype is DType.BFLOAT16 else SMALL
    return MEDIUM if dtype is DType.FLOAT32 and name in TABLES else LARGE


def _extreme(dtype: DType, draws: Draws, vectors: tuple[str, str]) -> dict[str, str]:
    """Return ranges at the ends of the dtype, in the vectors or in cos and sin."""
    largest, (normal, least) = LARGEST[dtype], SMALLEST[dtype]
    ends = (
        f"({largest},{largest},)",
        f"(-{largest},-{largest},)",
        f"(-{largest},{largest},)",
        "(-inf,inf,)",
        f"({least},{normal},)",
        f"(-{normal},{normal},)",
    )
    tame = ("(0.01,1,)", "(-1,-0.01,)", "(1,1,)", "(-1,1,)")
    ranges = {name: draws.one_of(tame) for name in (*vectors, *TABLES)}
    for name in TABLES if draws.below(2) else vectors:
        ranges[name] = draws.one_of(ends)
    if dtype is DType.FLOAT32:
        # products of float32 are rounded: with sin there would be something to cancel
        ranges["sin"] = "(0,0,)"
    return ranges
