"""Verdicts on pairs made by hand, each worked out from the definition and in fractions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.validation import EDITIONS, STANDARDS, compare

F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
INF, NAN = math.inf, math.nan


class Pair(NamedTuple):
    """What came, what was to come, and the verdict."""

    dtype: DType
    actual: list[float]
    golden: list[float]
    passed: bool
    why: str


def many(count: int, actual: float, golden: float = 1.0) -> tuple[list[float], list[float]]:
    """100 elements of 1, *count* of which are the given pair."""
    return [actual] * count + [1.0] * (100 - count), [golden] * count + [1.0] * (100 - count)


MIXED = [
    Pair(F32, [1.0], [1.0], True, "equal"),
    Pair(F32, [1 + 2**-10], [1.0], True, "error 2^-10 is under 2^-10 + 2^-16"),
    Pair(F32, [1 + 2**-10 + 2**-16], [1.0], True, "error is the tolerance itself"),
    Pair(F32, [1 + 2**-10 + 2**-16 + 2**-23], [1.0], False, "one place over the tolerance"),
    Pair(F32, [2**-16], [0.0], True, "at golden 0 the absolute tolerance is left"),
    Pair(F32, [2**-16 + 2**-39], [0.0], False, "just over it"),
    Pair(F16, [2**-9], [0.0], True, "float16: 2^-9"),
    Pair(F16, [2**-9 + 2**-19], [0.0], False, "float16: just over 2^-9"),
    Pair(F16, [1 + 2**-8], [1.0], True, "float16: 2^-9 + 2^-9 at 1"),
    Pair(BF16, [1 + 2**-5], [1.0], True, "bfloat16: 2^-6 + 2^-6 at 1"),
    Pair(BF16, [1 + 2**-5 + 2**-7], [1.0], False, "bfloat16: a place more"),
    Pair(F32, *many(1, 1.009), True, "99 of 100 pass, error under the floor 0.01"),
    Pair(F32, *many(2, 1.009), False, "98 of 100 pass"),
    Pair(F32, *many(1, 1.0101), False, "error over the floor, and 32 ULP of 1 is less"),
    Pair(F16, *many(1, 1.0996), True, "float16: error under the floor 0.1"),
    Pair(F16, *many(1, 1.1006), False, "float16: over the floor; 32 ULP of 1 is 0.03125"),
    Pair(BF16, *many(1, 2.0), True, "bfloat16: error is the floor 1"),
    Pair(BF16, *many(1, 2.015625), False, "bfloat16: over the floor; 32 ULP of 1 is 0.25"),
    Pair(F32, *many(1, 2.0**20 + 4, 2.0**20), True, "32 ULP of 2^20 is 4"),
    Pair(F32, *many(1, 2.0**20 + 2048, 2.0**20), False, "2048 is within rtol + but over 32 ULP"),
    Pair(F16, *many(1, 2064.0, 2000.0), False, "32 ULP of 2000 is 32, the error 64"),
    Pair(F16, *many(1, 2080.0, 2048.0), True, "32 ULP of 2048 is 64"),
    Pair(F32, [NAN, 1.0], [NAN, 1.0], True, "NaN in both"),
    Pair(F32, [NAN, 1.0], [1.0, 1.0], False, "NaN in the output only"),
    Pair(F32, [1.0, 1.0], [NAN, 1.0], False, "NaN in the golden only"),
    Pair(F16, [INF, -INF], [INF, -INF], True, "the same infinities"),
    Pair(F16, [INF], [-INF], False, "the other infinity"),
    Pair(F16, [INF], [65504.0], False, "infinity for the largest finite value"),
    Pair(F16, [65504.0], [INF], False, "the largest finite value for infinity"),
    Pair(F32, [INF], [NAN], False, "infinity for NaN"),
    Pair(F32, *many(1, NAN), False, "one NaN too many among 100"),
    Pair(F32, [NAN] * 3, [NAN] * 3, True, "nothing but NaN"),
    Pair(F32, [-0.0], [0.0], True, "the sign of zero does not count"),
]

STAT_REL_ERR = [
    Pair(F32, [1.0, -2.0], [1.0, -2.0], True, "equal"),
    Pair(F32, [1 + 2**-13], [1.0], True, "mean 2^-13 / (1 + 1e-7) is under 2^-13"),
    Pair(F32, [1 + 2**-13 + 2**-23], [1.0], False, "mean over 2^-13"),
    Pair(F16, [1 + 2**-10], [1.0], True, "float16: mean just under 2^-10"),
    Pair(F16, [1 + 2**-9], [1.0], False, "float16: mean 2^-9"),
    Pair(BF16, [1 + 2**-7], [1.0], True, "bfloat16: mean just under 2^-7"),
    Pair(BF16, [1 + 2**-6], [1.0], False, "bfloat16: mean 2^-6"),
    Pair(F16, *many(1, 1 + 9 * 2**-10), True, "mean 0.09 t, largest 9 t"),
    Pair(F16, *many(1, 1 + 11 * 2**-10), False, "largest 11 t"),
    Pair(F32, [1e-3], [0.0], False, "at golden 0 the error is divided by 1e-7"),
    Pair(F16, [NAN, INF, 1.0], [NAN, INF, 1.0], True, "NaN and infinity in both"),
    Pair(F16, [NAN, 1.0], [1.0, 1.0], False, "NaN on one side"),
    Pair(F16, [NAN, 1 + 2**-9], [NAN, 1.0], False, "a NaN in both does not dilute the mean"),
    Pair(F32, [INF], [INF], True, "no finite pair at all"),
]

BINARY = [
    Pair(F32, [1.0, -2.0], [1.0, -2.0], True, "equal"),
    Pair(F32, [1 + 2**-23], [1.0], False, "one place off"),
    Pair(F16, [0.0], [-0.0], False, "the sign of zero is a bit"),
    Pair(BF16, [NAN, INF], [NAN, INF], True, "NaN equals NaN"),
    Pair(BF16, [INF], [-INF], False, "the other infinity"),
    Pair(BF16, [NAN], [INF], False, "NaN for infinity"),
]


def arrays(pair: Pair) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The pair as arrays of its dtype."""
    return (
        np.array(pair.actual).astype(pair.dtype.numpy),
        np.array(pair.golden).astype(pair.dtype.numpy),
    )


@pytest.mark.parametrize("pair", MIXED, ids=lambda pair: f"{pair.dtype.value}: {pair.why}")
def test_mixed(judge: Any, pair: Pair) -> None:
    """The verdict of `mixed` is the one that follows from its definition."""
    actual, golden = arrays(pair)
    assert judge.passes(actual.tolist(), golden.tolist(), "mixed", pair.dtype) == pair.passed
    found = compare(actual, golden, "mixed", dtype=pair.dtype)
    assert found.passed == pair.passed
    assert bool(found.reason) != pair.passed
    assert found.edition == "current"


@pytest.mark.parametrize(
    ("dtype", "tolerated"), [(F32, 2**-13), (F16, 2**-10), (BF16, 2**-7)], ids=str
)
def test_mixed_in_its_earlier_edition(judge: Any, dtype: DType, tolerated: float) -> None:
    """The earlier edition has thresholds of its own: smaller, and a floor of 0.1 for bfloat16."""
    floor = 0.01 if dtype is F32 else 0.1
    over_floor = 1.0 + (0.0102 if dtype is F32 else 0.1016 if dtype is F16 else 0.26)
    for off, golden, passed in (
        ([tolerated], [0.0], True),
        ([tolerated * (1 + 2**-7)], [0.0], False),
        (*many(1, 1.0 + floor * 0.9), True),
        (*many(1, over_floor), False),
    ):
        a, g = (np.array(side).astype(dtype.numpy) for side in (off, golden))
        found = compare(a, g, "mixed", dtype=dtype, edition="earlier")
        assert judge.passes(a.tolist(), g.tolist(), "mixed", dtype, "earlier") == passed
        assert found.passed == passed
        assert found.edition == "earlier"
        assert found.thresholds["rtol"] == found.thresholds["atol"] == tolerated


@pytest.mark.parametrize("pair", STAT_REL_ERR, ids=lambda pair: f"{pair.dtype.value}: {pair.why}")
def test_stat_rel_err(judge: Any, pair: Pair) -> None:
    """The verdict of `stat_rel_err` is the one that follows from its definition."""
    actual, golden = arrays(pair)
    exact = judge.passes(actual.tolist(), golden.tolist(), "stat_rel_err", pair.dtype)
    assert exact == pair.passed
    assert compare(actual, golden, "stat_rel_err", dtype=pair.dtype).passed == pair.passed


@pytest.mark.parametrize("pair", BINARY, ids=lambda pair: f"{pair.dtype.value}: {pair.why}")
def test_binary(pair: Pair) -> None:
    """The verdict of `binary` is equality of bits, NaN being NaN."""
    actual, golden = arrays(pair)
    assert compare(actual, golden, "binary", dtype=pair.dtype).passed == pair.passed


@pytest.mark.parametrize(
    ("off_count", "error", "given", "passed"),
    [
        (1, 0.5, {"ptol": 0.01}, True),
        (2, 0.5, {"ptol": 0.01}, False),
        (1, 0.5, {}, False),
        (100, 2**-10, {}, True),
        (100, 2**-10, {"rtol": 2**-11}, False),
        (100, 2**-10, {"rtol": 2**-10, "atol": 0.0, "ptol": 0.0}, True),
        (100, 2**-10, {"rtol": 0.0, "atol": 2**-10, "ptol": 0.0}, True),
        (100, 2**-10, {"rtol": 0.0, "atol": 2**-11, "ptol": 0.99}, False),
        (100, 2**-10, {"rtol": 0.0, "atol": 0.0, "ptol": 1.0}, True),
        (0, 0.0, {"rtol": 0.0, "atol": 0.0, "ptol": 0.0}, True),
    ],
)
def test_close(
    judge: Any, off_count: int, error: float, given: dict[str, float], passed: bool
) -> None:
    """`close` counts the elements over the tolerance against a share, by default 0.001."""
    a, g = (np.array(side, np.float16) for side in many(off_count, 1 + error))
    found = compare(a, g, "close", dtype=F16, **given)
    used = [given.get(name, default) for name, default in (("rtol", 0.001), ("ptol", 0.001))]
    exact = (str(used[0]), str(used[1]), str(given.get("atol", 1e-8)))
    assert judge.passes(a.tolist(), g.tolist(), "close", F16, close=exact) == passed
    assert found.passed == passed
    assert found.thresholds == {"rtol": used[0], "ptol": used[1], "atol": given.get("atol", 1e-8)}


def test_close_has_other_defaults_for_float32() -> None:
    """For float32 rtol and the share are 0.0001."""
    a, g = np.array([1.0005, 1.0], np.float32), np.ones(2, np.float32)
    found = compare(a, g, "close", dtype=F32)
    assert not found.passed
    assert found.thresholds == {"rtol": 0.0001, "ptol": 0.0001, "atol": 1e-8}


@pytest.mark.parametrize("standard", STANDARDS)
def test_nan_on_one_side_fails_every_standard(standard: str) -> None:
    """No share of elements that may miss covers a NaN that stands alone."""
    given = {"ptol": 1.0} if standard == "close" else {}
    g = np.ones(2000, np.float32)
    a = g.copy()
    a[1234] = NAN
    found = compare(a, g, standard, dtype=F32, **given)
    assert not found.passed
    assert found.mismatch_count == 1
    assert found.first_mismatch is not None
    assert found.first_mismatch.index == (1234,)
    assert "[1234]: got nan, golden 1" in found.reason


@pytest.mark.parametrize(
    ("actual", "golden", "passed"),
    [
        (INF, 70000.0, True),
        (-INF, -70000.0, True),
        (INF, 65520.0, True),
        (65504.0, 65519.99, True),
        (INF, 65519.99, False),
        (65504.0, 65520.0, False),
        (-INF, 70000.0, False),
        (NAN, NAN, True),
    ],
)
def test_an_unrounded_golden_is_rounded_before_infinities_are_compared(
    actual: float, golden: float, passed: bool
) -> None:
    """A float64 golden of 70000 is infinity in float16, and so is 65520, a tie; 65519.99 is not."""
    a, g = np.array([actual], np.float16), np.array([golden])
    for standard in STANDARDS:
        assert compare(a, g, standard, dtype=F16).passed == passed


def test_an_unrounded_golden_is_measured_unrounded() -> None:
    """Errors are taken to the float64 value, the ULP from the rounded one, bits from rounding."""
    golden = np.array([1.0 + 2**-12])
    found = compare(np.array([1.0], np.float16), golden, "binary", dtype=F16)
    assert found.passed
    assert found.max_abs_error == 2**-12
    just_under_two = np.array([2 - 2**-12] * 100)
    actual = np.full(100, 2.0, np.float16)
    actual[0] = 2.0625
    found = compare(actual, just_under_two, "mixed", dtype=F16)
    assert found.thresholds["max_abs_error"] == 0.1
    big = np.array([2048.0 - 0.4] * 100)
    actual = np.full(100, 2048.0, np.float16)
    actual[0] = 2110.0
    # rounded, the golden is 2048 and its place 2; unrounded it would be 1
    assert compare(actual, big, "mixed", dtype=F16).thresholds["max_abs_error"] == 64


def test_worst_and_first_elements_have_their_place() -> None:
    """The worst element is where the error is largest, the first failing one where it begins."""
    golden = np.ones((3, 4, 5), np.float32)
    actual = golden.copy()
    actual[1, 2, 3] = 1.5
    actual[2, 3, 4] = -7.0
    found = compare(actual, golden, dtype=F32)
    assert found.worst is not None
    assert found.first_failing is not None
    assert (found.worst.index, found.worst.actual, found.worst.golden) == ((2, 3, 4), -7.0, 1.0)
    assert found.worst.abs_error == found.max_abs_error == 8.0
    assert found.first_failing.index == (1, 2, 3)
    assert found.first_mismatch is None
    assert (found.passing_count, found.element_count) == (58, 60)
    assert "58 of 60 elements pass, at least 0.99 must" in found.reason
    assert "worst at [2, 3, 4]: got -7, golden 1, error 8" in found.reason


def test_close_names_the_element_furthest_over_its_tolerance() -> None:
    """A large error that is allowed is not the worst; a small one that is not allowed is."""
    golden = np.array([1000.0, 0.0], np.float32)
    actual = np.array([1000.05, 0.01], np.float32)
    found = compare(actual, golden, "close", dtype=F32)
    assert found.worst is not None
    assert found.worst.index == (1,)


def test_equal_arrays_have_no_worst_element() -> None:
    """Where nothing is off there is no worst element, and all figures are 0."""
    array = np.arange(6, dtype=np.float32)
    for standard in STANDARDS:
        found = compare(array, array.copy(), standard, dtype=F32)
        assert found.passed
        assert found.worst is found.first_failing is found.first_mismatch is None
        assert found.max_abs_error == found.mean_rel_error == found.max_rel_error == 0
        assert found.share == 1


def test_blocks_join_seamlessly() -> None:
    """Figures and places are right across the blocks in which a large output is read."""
    golden = np.ones((3, 100_000), np.float32)
    actual = golden.copy()
    actual[0, 99_999] = 1.25
    actual[2, 7] = 0.5
    actual[1, 50_000] = golden[1, 50_000] = NAN
    found = compare(actual, golden, "stat_rel_err", dtype=F32)
    assert found.worst is not None
    assert found.first_failing is not None
    assert found.worst.index == (2, 7)
    assert found.first_failing.index == (0, 99_999)
    assert found.passing_count == 299_998
    assert found.mean_rel_error == pytest.approx(0.75 / (1 + 1e-7) / 299_999, rel=1e-12)


def test_a_scalar_and_a_strided_output_are_compared() -> None:
    """Outputs without axes, and views with any strides, are judged like others."""
    assert compare(np.array(1.0, np.float32), np.array(1.0, np.float32), dtype=F32).passed
    golden = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = compare(golden.T, np.ascontiguousarray(golden.T) + np.eye(6, 4), dtype=F32)
    assert not found.passed
    assert found.first_failing is not None
    assert found.first_failing.index == (0, 0)


@pytest.mark.parametrize(
    ("standard", "given", "said"),
    [
        ("closer", {}, "compare is closer; allowed is mixed, stat_rel_err, close, cosine, binary"),
        ("mixed", {"edition": "2024"}, "edition is 2024; allowed is current, earlier"),
        ("close", {"edition": "earlier"}, "only mixed has others"),
        ("mixed", {"rtol": 0.1}, "only close takes it"),
        ("binary", {"ptol": 0.1}, "only close takes it"),
        ("stat_rel_err", {"atol": 0.1}, "only close takes it"),
        ("close", {"rtol": -1.0}, "0 or more"),
        ("close", {"atol": NAN}, "0 or more"),
        ("close", {"atol": INF}, "0 or more"),
    ],
)
def test_words_that_are_not_served(standard: str, given: dict[str, Any], said: str) -> None:
    """An unknown standard or edition, or a threshold that is not taken, is refused by name."""
    one = np.ones(1, np.float32)
    with pytest.raises(Problem, match=said) as caught:
        compare(one, one, standard, dtype=F32, **given)
    assert caught.value.reason is Reason.ATTRIBUTE_INVALID


@pytest.mark.parametrize(
    ("actual", "golden", "reason"),
    [
        (np.ones(2, np.float32), np.ones(3, np.float32), Reason.SHAPE_MISMATCH),
        (np.ones((0, 2), np.float32), np.ones((0, 2), np.float32), Reason.SHAPE_MISMATCH),
        (np.ones(2), np.ones(2), Reason.DTYPE_NOT_ALLOWED),
        (np.ones(2, np.float32), np.ones(2, np.float16), Reason.DTYPE_NOT_ALLOWED),
    ],
)
def test_arrays_that_do_not_belong_together(actual: Any, golden: Any, reason: Reason) -> None:
    """Other shapes, no elements, and other dtypes are refused rather than broadcast."""
    with pytest.raises(Problem) as caught:
        compare(actual, golden, dtype=F32)
    assert caught.value.reason is reason


def test_the_default_words_come_first() -> None:
    """The defaults that the tools print are the standard `mixed` in its current edition."""
    assert (STANDARDS[0], EDITIONS[0]) == ("mixed", "current")
