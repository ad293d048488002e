"""What holds for every pair of arrays, and agreement with the exact judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation import STANDARDS, compare

DTYPES = st.sampled_from(list(DType))
_SPECIAL = (np.nan, np.inf, -np.inf)
Array = NDArray[Any]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[DType, Array, Array]:
    """A golden of 1 to 200 elements and an output that is off at a few of them by some factor."""
    dtype = draw(DTYPES)
    count = draw(st.sampled_from([1, 2, 7, 99, 100, 101, 200]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 2.0 ** draw(st.integers(-20, 12))
    golden = (random.uniform(-scale, scale, count)).astype(dtype.numpy)
    actual = golden.astype(np.float64)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, count - 1))
        kind = draw(st.sampled_from(["relative", "absolute", "both", "one", "zero"]))
        if kind == "relative":
            actual[place] *= 1 + 2.0 ** draw(st.integers(-25, 3))
        elif kind == "absolute":
            actual[place] += draw(st.sampled_from([-1, 1])) * 2.0 ** draw(st.integers(-25, 3))
        elif kind == "zero":
            golden[place] = 0.0
        elif kind == "both":
            actual[place] = golden[place] = draw(st.sampled_from(_SPECIAL))
        elif draw(st.booleans()):
            actual[place] = draw(st.sampled_from(_SPECIAL))
        else:
            golden[place] = draw(st.sampled_from(_SPECIAL))
    if draw(st.booleans()):
        actual *= 1 + 2.0 ** draw(st.integers(-25, -5))
    with np.errstate(all="ignore"):
        return dtype, actual.astype(dtype.numpy), golden


@given(pairs(), st.sampled_from(["current", "earlier"]))
def test_mixed_agrees_with_the_exact_judge(
    judge: Any, case: tuple[DType, Array, Array], edition: str
) -> None:
    """The verdict of `mixed` is that of the definition in fractions, in both editions."""
    dtype, actual, golden = case
    exact = judge.passes(actual.tolist(), golden.tolist(), "mixed", dtype, edition)
    assert compare(actual, golden, dtype=dtype, edition=edition).passed == exact


@given(pairs())
def test_stat_rel_err_agrees_with_the_exact_judge(
    judge: Any, case: tuple[DType, Array, Array]
) -> None:
    """The verdict of `stat_rel_err` is that of the definition in fractions."""
    dtype, actual, golden = case
    exact = judge.passes(actual.tolist(), golden.tolist(), "stat_rel_err", dtype)
    assert compare(actual, golden, "stat_rel_err", dtype=dtype).passed == exact


@given(
    pairs(),
    st.sampled_from(["0", "0.001", "0.25"]),
    st.sampled_from(["0", "0.01", "0.5", "1"]),
    st.sampled_from(["0", "1e-8", "0.125"]),
)
def test_close_agrees_with_the_exact_judge(
    judge: Any, case: tuple[DType, Array, Array], rtol: str, ptol: str, atol: str
) -> None:
    """The verdict of `close` is that of the definition in fractions, for any tolerances."""
    dtype, actual, golden = case
    exact = judge.passes(actual.tolist(), golden.tolist(), "close", dtype, close=(rtol, ptol, atol))
    found = compare(
        actual, golden, "close", dtype=dtype, rtol=float(rtol), ptol=float(ptol), atol=float(atol)
    )
    assert found.passed == exact


@given(pairs())
def test_binary_is_equality_of_bits(case: tuple[DType, Array, Array]) -> None:
    """The verdict of `binary` is equality of bytes after NaN is made the same."""
    dtype, actual, golden = case
    sides = []
    for side in (actual, golden):
        same = side.copy()
        same[np.isnan(same)] = np.nan
        sides.append(same.tobytes())
    assert compare(actual, golden, "binary", dtype=dtype).passed == (sides[0] == sides[1])


@given(DTYPES, st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_output_agrees_with_itself(dtype: DType, bits: list[int]) -> None:
    """Any bits at all, signalling NaN and denormal numbers among them, equal themselves."""
    words = np.array(bits, np.uint32)
    array = words.view(np.float32) if dtype is DType.FLOAT32 else words.astype(np.uint16)
    array = array.view(dtype.numpy)
    for standard in STANDARDS:
        found = compare(array, array.copy(), standard, dtype=dtype)
        assert found.passed
        assert found.passing_count == array.size


@given(pairs())
def test_an_unrounded_golden_that_needs_no_rounding_changes_nothing(
    case: tuple[DType, Array, Array],
) -> None:
    """A golden of the dtype, given as float64, leads to the same figures."""
    dtype, actual, golden = case
    wide = golden.astype(np.float64)
    for standard in STANDARDS:
        found = compare(actual, golden, standard, dtype=dtype)
        again = compare(actual, wide, standard, dtype=dtype)
        assert (found.passed, found.passing_count, found.max_abs_error, found.mismatch_count) == (
            again.passed,
            again.passing_count,
            again.max_abs_error,
            again.mismatch_count,
        )


@given(pairs())
def test_figures_are_consistent(case: tuple[DType, Array, Array]) -> None:
    """Counts add up, a reason is there exactly where the verdict is no, shape does not matter."""
    dtype, actual, golden = case
    for standard in STANDARDS:
        found = compare(actual, golden, standard, dtype=dtype)
        folded = compare(actual[:, None, None], golden[:, None, None], standard, dtype=dtype)
        assert folded.passed == found.passed
        assert bool(found.reason) != found.passed
        assert found.mismatch_count + found.passing_count <= found.element_count
        assert (found.first_failing is None) == (found.passing_count == found.element_count)
        assert (found.first_mismatch is None) == (found.mismatch_count == 0)
        if found.worst is not None:
            assert found.worst.abs_error <= found.max_abs_error
            assert folded.worst is not None
            assert folded.worst.index == (*found.worst.index, 0, 0)


@pytest.mark.parametrize("standard", STANDARDS)
def test_the_arrays_are_not_changed(standard: str) -> None:
    """Read-only arrays are compared, so nothing is written to them."""
    actual = np.linspace(-1, 1, 50, dtype=np.float32)
    golden = actual.astype(np.float64) + 1e-9
    actual.flags.writeable = golden.flags.writeable = False
    compare(actual, golden, standard, dtype=DType.FLOAT32)
