"""Pairs made by hand, each judged by every standard.

The verdicts are worked out twice: by hand, as the letters P and F beside each pair, and by the
standards' definitions in fractions, which share nothing with the comparison under test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.validation import compare, cross_check_arrays, examine

F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
INF, NAN = math.inf, math.nan
Values = Sequence[float]

COLUMNS = ("mixed", "mixed earlier", "stat_rel_err", "close", "cosine", "binary")
"""What the letters of a pair stand for, in this order."""


class Pair(NamedTuple):
    """An output, its golden, and the verdicts."""

    name: str
    dtype: DType
    actual: Values
    golden: Values
    letters: str
    unrounded: bool = False


class Triple(NamedTuple):
    """An output, its golden, another output, and the verdicts at L0, L1 and L2."""

    name: str
    dtype: DType
    actual: Values
    golden: Values
    other: Values
    letters: str
    unrounded: bool = False


def off(count: int, actual: float, golden: float = 1.0, of: int = 100) -> tuple[Values, Values]:
    """*of* elements of 1, *count* of which are the given pair."""
    rest = [1.0] * (of - count)
    return [actual] * count + rest, [golden] * count + rest


# one step of float32 at 1
STEP = 2.0**-23

PAIRS = [
    # exact hits
    Pair("equal", F32, [1.0, -2.0, 0.5], [1.0, -2.0, 0.5], "PPPPPP"),
    Pair("equal extremes", F16, [65504.0, -(2**-24), 0.0], [65504.0, -(2**-24), 0.0], "PPPPPP"),
    Pair("equal bfloat16", BF16, [1.0, 2**-133, -3.0], [1.0, 2**-133, -3.0], "PPPPPP"),
    Pair("nothing but 0", F32, [0.0, 0.0], [0.0, 0.0], "PPPPPP"),
    Pair("the sign of 0", F32, [-0.0], [0.0], "PPPPPF"),
    Pair("the least subnormal", F32, [2**-149], [2**-149], "PPPPPP"),
    # just inside and just outside, float32
    Pair("mixed: the tolerance", F32, [1 + 2**-10 + 2**-16], [1.0], "PFFFPF"),
    Pair("mixed: a step over", F32, [1 + 2**-10 + 2**-16 + STEP], [1.0], "FFFFPF"),
    Pair("earlier: the tolerance", F32, [1 + 2**-12], [1.0], "PPFFPF"),
    Pair("earlier: a step over", F32, [1 + 2**-12 + STEP], [1.0], "PFFFPF"),
    Pair("mean just under", F32, [1 + 2**-13], [1.0], "PPPFPF"),
    Pair("mean a step over", F32, [1 + 2**-13 + STEP], [1.0], "PPFFPF"),
    Pair("close: just inside", F32, [1 + 838 * STEP], [1.0], "PPPPPF"),
    Pair("close: a step over", F32, [1 + 839 * STEP], [1.0], "PPPFPF"),
    Pair("a step off", F32, [-1 - STEP], [-1.0], "PPPPPF"),
    # the same, 16 bits
    Pair("float16: the tolerance", F16, [1 + 2**-8], [1.0], "PFFFPF"),
    Pair("float16: over it", F16, [1 + 2**-8 + 2**-10], [1.0], "FFFFPF"),
    Pair("float16: a step off", F16, [1 + 2**-10], [1.0], "PPPPPF"),
    Pair("float16: two steps off", F16, [1 + 2**-9], [1.0], "PPFFPF"),
    Pair("bfloat16: the tolerance", BF16, [1 + 2**-5], [1.0], "PFFFPF"),
    Pair("bfloat16: over it", BF16, [1 + 2**-5 + 2**-7], [1.0], "FFFFPF"),
    Pair("bfloat16: a step off", BF16, [1 + 2**-7], [1.0], "PPPFPF"),
    Pair("bfloat16: two steps off", BF16, [1 + 2**-6], [1.0], "PPFFPF"),
    # zero golden
    Pair("at 0: the tolerance", F32, [2**-16], [0.0], "PPFFFF"),
    Pair("at 0: a step over", F32, [2**-16 + 2**-39], [0.0], "FPFFFF"),
    Pair("at 0: earlier tolerance", F32, [2**-13], [0.0], "FPFFFF"),
    Pair("at 0: a step over that", F32, [2**-13 + 2**-36], [0.0], "FFFFFF"),
    Pair("at 0: float16 tolerance", F16, [2**-9], [0.0], "PFFFFF"),
    Pair("at 0: float16, over it", F16, [2**-9 + 2**-19], [0.0], "FFFFFF"),
    Pair("at 0: bfloat16 tolerance", BF16, [2**-6], [0.0], "PFFFFF"),
    Pair("at 0: under atol of close", F32, [2**-30], [0.0], "PPFPFF"),
    Pair("0 for 1", F32, [0.0], [1.0], "FFFFFF"),
    Pair("one of two is lost", F32, [1.0, 0.0], [1.0, 2**-16], "PPFFPF"),
    Pair("a golden that rounds to 0", F16, [0.0], [2**-26], "PPFFPP", unrounded=True),
    Pair("a golden that does not", F16, [0.0], [2**-24], "PPFFFF", unrounded=True),
    # NaN and infinity
    Pair("NaN in both", F32, [NAN, 1.0], [NAN, 1.0], "PPPPPP"),
    Pair("NaN in the output", F32, [NAN, 1.0], [1.0, 1.0], "FFFFFF"),
    Pair("NaN in the golden", F32, [1.0, 1.0], [NAN, 1.0], "FFFFFF"),
    Pair("the same infinities", F16, [INF, -INF], [INF, -INF], "PPPPPP"),
    Pair("the other infinity", BF16, [INF], [-INF], "FFFFFF"),
    Pair("infinity for a finite value", F16, [INF], [65504.0], "FFFFFF"),
    Pair("a finite value for infinity", F16, [65504.0], [INF], "FFFFFF"),
    Pair("infinity for NaN", F32, [INF], [NAN], "FFFFFF"),
    Pair("nothing but NaN", BF16, [NAN, NAN], [NAN, NAN], "PPPPPP"),
    Pair("one NaN among 100", F32, *off(1, NAN), "FFFFFF"),
    Pair("NaN does not dilute", F16, [NAN, 1 + 2**-9], [NAN, 1.0], "PPFFPF"),
    Pair("infinity does not hide", F32, [INF, 2.0], [INF, 1.0], "FFFFPF"),
    # float16 overflow
    Pair("70000 is infinity", F16, [INF], [70000.0], "PPPPPP", unrounded=True),
    Pair("70000 is not -infinity", F16, [-INF], [70000.0], "FFFFFF", unrounded=True),
    Pair("65520 is a tie", F16, [INF, -INF], [65520.0, -65520.0], "PPPPPP", unrounded=True),
    Pair("65520 is not 65504", F16, [65504.0], [65520.0], "FFFFFF", unrounded=True),
    Pair("65519.99 is 65504", F16, [65504.0], [65519.99], "PPPPPP", unrounded=True),
    Pair("65519.99 is not infinity", F16, [INF], [65519.99], "FFFFFF", unrounded=True),
    Pair("bfloat16 overflow", BF16, [INF], [3.4e38], "PPPPPP", unrounded=True),
    Pair("a step under the largest", F16, [60000.0], [60032.0], "PPPPPF"),
    # unrounded goldens
    Pair("rounded to the output", F16, [1.0], [1 + 2**-12], "PPPPPP", unrounded=True),
    Pair("a tie goes to even", F16, [1.0], [1 + 2**-11], "PPPPPP", unrounded=True),
    Pair("a tie goes not up", F16, [1 + 2**-10], [1 + 2**-11], "PPPPPF", unrounded=True),
    # one element off by the floor
    Pair("floor: under", F32, *off(1, 1.0 + 75497 * STEP), "PPFFPF"),
    Pair("floor: just inside", F32, *off(1, 1 + 83886 * STEP), "PPFFPF"),
    Pair("floor: a step over", F32, *off(1, 1 + 83887 * STEP), "FFFFPF"),
    Pair("float16 floor: inside", F16, *off(1, 1 + 102 * 2**-10), "PPFFPF"),
    Pair("float16 floor: over", F16, *off(1, 1 + 103 * 2**-10), "FFFFPF"),
    Pair("bfloat16 floor: 1", BF16, *off(1, 2.0), "PFFFPF"),
    Pair("bfloat16 floor: over", BF16, *off(1, 2.015625), "FFFFPF"),
    Pair("bfloat16: 32 places of 1", BF16, *off(1, 1.25), "PPFFPF"),
    Pair("bfloat16: 33 places of 1", BF16, *off(1, 1.2578125), "PFFFPF"),
    Pair("32 places of 2^20", F32, *off(1, 2.0**20 + 4, 2.0**20), "PPPPPF"),
    Pair("33 places of 2^20", F32, *off(1, 2.0**20 + 4.125, 2.0**20), "FFPPPF"),
    Pair("float16: 32 places of 2048", F16, *off(1, 2112.0, 2048.0), "PPFFPF"),
    Pair("float16: 33 places of 2048", F16, *off(1, 2114.0, 2048.0), "FFFFPF"),
    # a share off
    Pair("1 percent off", F32, *off(1, 1 + 2**-9), "PPFFPF"),
    Pair("1 percent of 200", F32, *off(2, 1 + 2**-9, of=200), "PPFFPF"),
    Pair("1.5 percent of 200", F32, *off(3, 1 + 2**-9, of=200), "FFFFPF"),
    Pair("2 percent off", F32, *off(2, 1 + 75497 * STEP), "FFFFPF"),
    Pair("1 of 99", F16, *off(1, 1 + 2**-7, of=99), "FFPFPF"),
    Pair("close: 1 of 1000", F16, *off(1, 1.5, of=1000), "FFFPPF"),
    Pair("close: 2 of 1000", F16, *off(2, 1.5, of=1000), "FFFFPF"),
    Pair("close: 1 of 10000", F32, *off(1, 1 + 2**-9, of=10000), "PPFPPF"),
    Pair("close: 2 of 10000", F32, *off(2, 1 + 2**-9, of=10000), "PPFFPF"),
    Pair("the largest is 9 t", F16, *off(1, 1 + 9 * 2**-10), "PPPFPF"),
    Pair("the largest is nearly 10 t", F16, *off(1, 1 + 10 * 2**-10), "PPPFPF"),
    Pair("the largest is 11 t", F16, *off(1, 1 + 11 * 2**-10), "PPFFPF"),
    # directions: 99^2 + 14^2 + 3 is 100^2
    Pair("cos is 0.99", F32, [99.0, 14.0, 1.0, 1.0, 1.0], [1.0, 0, 0, 0, 0], "FFFFPF"),
    Pair("cos under 0.99", F32, [99.0, 14.0, 1.0, 1.0, 1 + 2**-10], [1.0, 0, 0, 0, 0], "FFFFFF"),
    Pair("cos over 0.99", F32, [99.0, 14.0, 1.0, 1.0, 1 - 2**-10], [1.0, 0, 0, 0, 0], "FFFFPF"),
    Pair("the opposite", F32, [-1.0, -2.0], [1.0, 2.0], "FFFFFF"),
    Pair("at a right angle", F16, [1.0, 0.0], [0.0, 1.0], "FFFFFF"),
    Pair("twice as long", BF16, [2.0, 4.0], [1.0, 2.0], "FFFFPF"),
    Pair("squares over float32", F32, [2.0**127, 1.5 * 2**127], [1.25 * 2**127, 1.5 * 2**127],
         "FFFFPF"),
    Pair("squares under float32", F32, [2**-149, 0.0], [2**-149, 2**-149], "PPPPFF"),
]  # fmt: skip

E = 2.0**-20
"""The other implementation's error in float32."""


def times(*runs: tuple[int, float]) -> Values:
    """Elements of 1, of which runs are off by multiples of `E`."""
    return [1 + multiple * E for count, multiple in runs for _ in range(count)]


ONES, EVEN = [1.0] * 100, times((100, 1.0))

TRIPLES = [
    Triple("all exact", F32, [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], "PPP"),
    Triple("only the other is off", F32, ONES, ONES, EVEN, "PPP"),
    Triple("only the device is off", F32, times((99, 0.0), (1, 1.0)), ONES, ONES, "FFF"),
    Triple("equally off", F32, EVEN, ONES, EVEN, "PPP"),
    Triple("off to the other side", F32, times((100, -1.0)), ONES, EVEN, "PPP"),
    Triple("largest: 2", F32, times((1, 2.0), (99, 1.0)), ONES, EVEN, "PPP"),
    Triple("largest: 2.125", F32, times((1, 2.125), (99, 1.0)), ONES, EVEN, "PPF"),
    Triple("largest: 4.875", F32, times((1, 4.875), (99, 1.0)), ONES, EVEN, "PPF"),
    Triple("largest: 5.125", F32, times((1, 5.125), (99, 1.0)), ONES, EVEN, "PFF"),
    Triple("largest: 9.875", F32, times((1, 9.875), (99, 1.0)), ONES, EVEN, "PFF"),
    Triple("largest: 10.125", F32, times((1, 10.125), (99, 1.0)), ONES, EVEN, "FFF"),
    Triple("all: 1.125", F32, times((100, 1.125)), ONES, EVEN, "PPP"),
    Triple("all: 1.25", F32, times((100, 1.25)), ONES, EVEN, "PPF"),
    Triple("all: 1.625", F32, times((100, 1.625)), ONES, EVEN, "PFF"),
    Triple("all: 2", F32, times((100, 2.0)), ONES, EVEN, "PFF"),
    Triple("all: 2.125", F32, times((100, 2.125)), ONES, EVEN, "FFF"),
    Triple("square root of 1.6", F32, times((10, 4.0), (90, 0.0)), ONES, EVEN, "PPF"),
    Triple("square root of 3.2", F32, times((20, 4.0), (80, 0.0)), ONES, EVEN, "PFF"),
    Triple("square root of 4.8", F32, times((30, 4.0), (70, 0.0)), ONES, EVEN, "FFF"),
    Triple("small: 2 to 0", F32, [2**-15 + 2**-29] * 2 + [0.0], [2**-15] * 2 + [0.0],
           [2**-15] * 2 + [0.0], "PPP"),
    Triple("small: 3 to 0", F32, [2**-15 + 2**-29] * 3, [2**-15] * 3, [2**-15] * 3, "FFF"),
    Triple("small: 4 to 2", F32, [2**-29] * 4, [0.0] * 4, [2**-29] * 2 + [0.0] * 2, "PPP"),
    Triple("small: 5 to 2", F32, [2**-29] * 5, [0.0] * 5, [2**-29] * 2 + [0.0] * 3, "FFF"),
    Triple("small: 2^-30 is no error", F32, [2**-30] * 3, [0.0] * 3, [0.0] * 3, "PPP"),
    Triple("2^-14 is not small", F32, [2**-14 + 2**-37], [2**-14], [2**-14], "FFF"),
    Triple("small float16", F16, [2**-12 + 2**-15] * 3, [2**-12] * 3, [2**-12] * 3, "FFF"),
    Triple("small float16, allowed", F16, [2**-12 + 2**-16] * 3, [2**-12] * 3, [2**-12] * 3, "PPP"),
    Triple("2^-11 is not small", F16, [2**-11 + 2**-21], [2**-11], [2**-11], "FFF"),
    Triple("small bfloat16", BF16, [2**-9 + 2**-15] * 3, [2**-9] * 3, [2**-9] * 3, "FFF"),
    Triple("2^-8 is not small", BF16, [2**-8 + 2**-15], [2**-8], [2**-8], "FFF"),
    Triple("NaN in all", F32, [NAN, 1.0], [NAN, 1.0], [NAN, 1.0], "PPP"),
    Triple("NaN in the device's", F32, [NAN, 1.0], [1.0, 1.0], [1.0, 1.5], "FFF"),
    Triple("NaN in the other's", F32, [1.0, 1.0], [1.0, 1.0], [NAN, 1.5], "FFF"),
    Triple("infinity in the device's", BF16, [INF, 1.0], [2.0, 1.0], [1.0, 1.5], "FFF"),
    Triple("overflow of all", F16, [INF], [70000.0], [INF], "PPP", unrounded=True),
    Triple("overflow of the device's", F16, [INF], [65519.0], [65504.0], "FFF", unrounded=True),
    Triple("an unrounded golden", F16, [1.0], [1 + 2**-12], [1 + 2**-10], "PPP", unrounded=True),
]  # fmt: skip

TOLERANCES = {
    ("mixed", F32): ("1/1024", "1/65536", "0.01"),
    ("mixed", F16): ("1/512", "1/512", "0.1"),
    ("mixed", BF16): ("1/64", "1/64", "1"),
    ("mixed earlier", F32): ("1/8192", "1/8192", "0.01"),
    ("mixed earlier", F16): ("1/1024", "1/1024", "0.1"),
    ("mixed earlier", BF16): ("1/128", "1/128", "0.1"),
}
"""rtol, atol and floor."""

MEANS = {F32: Fraction(1, 8192), F16: Fraction(1, 1024), BF16: Fraction(1, 128)}
CLOSE = {F32: "0.0001", F16: "0.001", BF16: "0.001"}
SMALL = {F32: (14, 30), F16: (11, 16), BF16: (8, 16)}
"""The limits of small values and of their errors, as exponents of 1/2."""

RATIOS = (("10", "2", "2"), ("5", "1.5", "1.5"), ("2", "1.2", "1.2"))
"""The limits of largest, mean and root mean square at L0, L1 and L2."""

FORMATS = {F32: (24, 127), F16: (11, 15), BF16: (8, 127)}
"""The bits of the significand and the largest exponent."""


@cache
def place(value: Fraction, dtype: DType) -> Fraction:
    """The value of the last place of a number's binade."""
    bits, largest = FORMATS[dtype]
    exponent = 1 - largest
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    return Fraction(2) ** (exponent - bits + 1)


def rounded(value: float, dtype: DType) -> float:
    """A number rounded to a dtype, to nearest, ties to even."""
    # a cache would take -0 for 0
    return nearest(value, dtype) if math.isfinite(value) and value else value


@cache
def nearest(value: float, dtype: DType) -> float:
    """The same for a finite number other than 0."""
    exact = Fraction(value)
    unit = place(exact, dtype)
    steps = round(exact / unit)
    if abs(steps * unit) >= Fraction(2) ** (FORMATS[dtype][1] + 1):
        return math.copysign(INF, value)
    return math.copysign(float(steps * unit), value)


def finite_pairs(
    actual: Values, golden: Values, dtype: DType
) -> list[tuple[Fraction, Fraction]] | None:
    """The pairs that are finite in both; None if NaN or infinity meets anything else."""
    pairs = []
    for a, g in zip(actual, golden, strict=True):
        to_be = rounded(g, dtype)
        if math.isfinite(a) and math.isfinite(to_be):
            pairs.append((Fraction(a), Fraction(g)))
        elif not (a == to_be or (math.isnan(a) and math.isnan(to_be))):
            return None
    return pairs


def relative(a: Fraction, g: Fraction) -> Fraction:
    """The relative error."""
    return abs(a - g) / (abs(g) + Fraction(1, 10**7))


def verdict(pair: Pair, column: str) -> bool:
    """The verdict on a pair by the definition."""
    pairs = finite_pairs(pair.actual, pair.golden, pair.dtype)
    if pairs is None:
        return False
    if column == "binary":
        return all(
            str(a) == str(float(rounded(g, pair.dtype)))
            for a, g in zip(map(float, pair.actual), pair.golden, strict=True)
        )
    if not pairs:
        return True
    count = len(pair.actual)
    if column.startswith("mixed"):
        rtol, atol, floor = map(Fraction, TOLERANCES[column, pair.dtype])
        missing = sum(abs(a - g) > atol + rtol * abs(g) for a, g in pairs)
        a, g = max(pairs, key=lambda item: abs(item[0] - item[1]))
        unit = place(Fraction(rounded(float(g), pair.dtype)), pair.dtype)
        return missing * 100 <= count and abs(a - g) <= max(floor, 32 * unit)
    if column == "stat_rel_err":
        errors = [relative(a, g) for a, g in pairs]
        limit = MEANS[pair.dtype]
        return sum(errors) < limit * len(errors) and max(errors) < 10 * limit
    if column == "close":
        share = Fraction(CLOSE[pair.dtype])
        missing = sum(abs(a - g) > Fraction("1e-8") + share * abs(g) for a, g in pairs)
        return missing <= share * count
    lengths = (
        sum(a * a for a, _ in pairs),
        sum(Fraction(rounded(float(g), pair.dtype)) ** 2 for _, g in pairs),
    )
    if 0 in lengths:
        return lengths[0] == lengths[1]
    product = sum(a * g for a, g in pairs)
    # cos >= 99/100, squared
    return product > 0 and (100 * product) ** 2 >= 99**2 * lengths[0] * sum(g * g for _, g in pairs)


def triple_verdict(triple: Triple, level: int) -> bool:
    """The verdict on a triple by the definition."""
    small, small_error = (Fraction(1, 2**exponent) for exponent in SMALL[triple.dtype])
    figures = []
    for output in (triple.actual, triple.other):
        pairs = finite_pairs(output, triple.golden, triple.dtype)
        if pairs is None:
            return False
        errors = [(relative(a, g), (a - g) ** 2) for a, g in pairs if abs(g) >= small]
        bad = sum(abs(g) < small and abs(a - g) > small_error for a, g in pairs)
        sums = [sum(column) for column in zip(*errors, strict=True)] or [Fraction(0)] * 2
        figures.append((max(errors, default=(Fraction(0),))[0], *sums, Fraction(bad)))
    device, other = figures
    largest, mean, root = map(Fraction, RATIOS[level])
    # both have the same number of elements, so that sums stand for means
    return (
        device[0] <= largest * other[0]
        and device[1] <= mean * other[1]
        and device[2] <= root**2 * other[2]
        and device[3] <= 2 * max(other[3], 1)
    )


def array(values: Values, dtype: DType, unrounded: bool = False) -> np.ndarray[Any, Any]:
    """The values as an array that holds them exactly."""
    wide = np.array(values, np.float64)
    if unrounded:
        return wide
    made = wide.astype(dtype.numpy)
    np.testing.assert_array_equal(made.astype(np.float64), wide)
    return made


def letter(passed: bool) -> str:
    """How the table writes a verdict."""
    return "P" if passed else "F"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_pairs(pair: Pair) -> None:
    """Every standard judges as worked out by hand and in fractions, and so does `examine`."""
    assert "".join(letter(verdict(pair, column)) for column in COLUMNS) == pair.letters
    actual = array(pair.actual, pair.dtype)
    golden = array(pair.golden, pair.dtype, pair.unrounded)
    for column, expected in zip(COLUMNS, pair.letters, strict=True):
        standard, _, edition = column.partition(" ")
        words = {"dtype": pair.dtype, "edition": edition or "current"}
        found = compare(actual, golden, standard, **words)
        assert (column, letter(found.passed)) == (column, expected)
        examined, _ = examine(actual, golden, standard, **words)
        # NaN is unequal to itself
        assert repr(examined) == repr(found)


@pytest.mark.parametrize("triple", TRIPLES, ids=lambda triple: triple.name)
def test_triples(triple: Triple) -> None:
    """`cross_check` judges as worked out by hand and in fractions, at every level."""
    assert "".join(letter(triple_verdict(triple, level)) for level in range(3)) == triple.letters
    actual, other = (array(side, triple.dtype) for side in (triple.actual, triple.other))
    golden = array(triple.golden, triple.dtype, triple.unrounded)
    for level, expected in zip(("L0", "L1", "L2"), triple.letters, strict=True):
        found = cross_check_arrays(actual, golden, other, dtype=triple.dtype, level=level)
        assert (level, letter(found.passed)) == (level, expected)
        assert bool(found.reason) != found.passed


def test_the_table_is_large_enough() -> None:
    """There are at least 60 pairs, under names of their own, and each verdict occurs everywhere."""
    assert len(PAIRS) >= 60
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    assert len({triple.name for triple in TRIPLES}) == len(TRIPLES)
    for letters in ([pair.letters for pair in PAIRS], [triple.letters for triple in TRIPLES]):
        for column in zip(*letters, strict=True):
            assert {"P", "F"} == set(column)
