"""Ranges of values, and the data drawn from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec, view_array
from opferry.validation import CellError, ValueRange, generate_input
from opferry.validation.rounding import FORMATS, round_value

DTYPES = list(DType)


def values(
    spec: TensorSpec, value_range: ValueRange, seed: int = 0, case: str = "a", name: str = "cos"
) -> NDArray[Any]:
    """Return the view of a generated input."""
    tensor = generate_input(spec, value_range, seed=seed, case_name=case, input_name=name)
    return view_array(tensor.spec, tensor.data)


def test_a_large_tensor_is_the_same_stream() -> None:
    """A tensor of several blocks begins like a tensor of one."""
    long = values(TensorSpec(DType.FLOAT32, (200_001,)), ValueRange())
    short = values(TensorSpec(DType.FLOAT32, (70_000,)), ValueRange())
    assert (long[:70_000] == short).all()
    assert np.unique(long).size > 190_000


def test_seed_case_and_name_each_change_the_data() -> None:
    """The same three give the same bits, any other one gives others."""
    spec = TensorSpec(DType.FLOAT32, (64,))
    base = values(spec, ValueRange(), 1, "a", "cos")
    assert (base == values(spec, ValueRange(), 1, "a", "cos")).all()
    for other in ((2, "a", "cos"), (1, "b", "cos"), (1, "a", "sin"), (-1, "a", "cos")):
        assert (base != values(spec, ValueRange(), *other)).any()


def test_default_range_reaches_across_minus_two_to_two() -> None:
    """Without a range the values fill [-2, 2] evenly."""
    found = values(TensorSpec(DType.FLOAT32, (4000,)), ValueRange.parse(None))
    assert found.min() < -1.99
    assert found.max() > 1.99
    assert abs(float(found.mean())) < 0.1
    assert found.min() >= -2
    assert found.max() <= 2


_bounds = st.floats(allow_nan=False, width=32) | st.sampled_from([0.0, -0.0, 1e39, 70000.0, -1e300])


@given(_bounds, _bounds, st.sampled_from(DTYPES), st.integers(1, 70))
def test_values_stay_in_the_closed_interval(a: float, b: float, dtype: DType, count: int) -> None:
    """Whatever the bounds, values lie between them as the dtype can hold them; none is NaN."""
    low, high = min(a, b), max(a, b)
    found = values(TensorSpec(dtype, (count,)), ValueRange(low, high)).astype(np.float64)
    # in one rounding: by way of float32 a bound could come out one place beside it
    low_held, high_held = (round_value(bound, dtype) for bound in (low, high))
    assert (found >= low_held).all()
    assert (found <= high_held).all()


_figures = st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf])


@given(_figures, st.lists(_figures, max_size=3))
def test_ranges_are_equal_by_their_figures(bound: float, forced: list[float]) -> None:
    """Two reads of one cell give equal ranges, also where it says nan; 0.0 is not -0.0."""
    one, other = (
        ValueRange(float(repr(bound)), float(repr(bound)), tuple(float(repr(v)) for v in forced))
        for _ in range(2)
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one != ValueRange(bound, bound, (*forced, 1.0))
    assert one != (bound, bound, tuple(forced))
    assert ValueRange(0.0, 0.0) != ValueRange(-0.0, -0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [0.0, -0.0, 1.5, math.inf, -math.inf, "largest"])
def test_equal_bounds_give_a_constant(dtype: DType, constant: Any) -> None:
    """Equal bounds give that value everywhere, with its sign, infinities and largest included."""
    value = FORMATS[dtype].largest if constant == "largest" else constant
    found = values(TensorSpec(dtype, (5, 7)), ValueRange(value, value)).astype(np.float64)
    assert (found == value).all()
    assert (np.signbit(found) == np.signbit(value)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_bounds_span_the_finite_range_and_occur(dtype: DType) -> None:
    """Between infinite bounds lie finite values of great size, and each infinity occurs once."""
    found = values(TensorSpec(dtype, (1000,)), ValueRange(-math.inf, math.inf)).astype(np.float64)
    assert sorted(found[np.isinf(found)]) == [-math.inf, math.inf]
    finite = found[np.isfinite(found)]
    assert finite.max() > 0.9 * FORMATS[dtype].largest
    assert finite.min() < -0.9 * FORMATS[dtype].largest


def test_one_infinite_bound_occurs() -> None:
    """With one infinite bound only that infinity occurs."""
    found = values(TensorSpec(DType.FLOAT16, (50,)), ValueRange(-1, math.inf))
    assert np.isposinf(found).sum() == 1
    assert not np.isneginf(found).any()


@pytest.mark.parametrize(("bound", "infinite"), [(65519.9, False), (65520.0, True), (1e39, True)])
def test_a_bound_beyond_the_dtype_counts_as_it_rounds(bound: float, infinite: bool) -> None:
    """A bound that float16 rounds to infinity is an infinite bound; one just under it is not."""
    found = values(TensorSpec(DType.FLOAT16, (50,)), ValueRange(0, bound))
    assert np.isinf(found).any() == infinite
    constant = values(TensorSpec(DType.FLOAT16, (3,)), ValueRange(bound, bound))
    assert constant.tolist() == [math.inf if infinite else 65504.0] * 3


@pytest.mark.parametrize("bounds", [(math.nan, math.nan), (math.nan, 1.0), (0.0, math.nan)])
def test_a_nan_bound_makes_all_nan_but_forced_values(bounds: tuple[float, float]) -> None:
    """One NaN bound is enough; a forced value still occurs."""
    assert np.isnan(values(TensorSpec(DType.BFLOAT16, (9,)), ValueRange(*bounds))).all()
    found = values(TensorSpec(DType.BFLOAT16, (9,)), ValueRange(*bounds, (3.0,)))
    assert np.isnan(found.astype(np.float32)).sum() == 8
    assert (found == 3).sum() == 1


@given(
    st.lists(st.integers(10, 200).map(float), min_size=1, max_size=12, unique=True),
    st.integers(1, 30),
    st.integers(0, 2**70),
)
def test_forced_values_occur_as_far_as_there_are_elements(
    forced: list[float], count: int, seed: int
) -> None:
    """Each forced value occurs; with fewer elements than values, the first ones do."""
    spec = TensorSpec(DType.FLOAT32, (count,))
    found = values(spec, ValueRange(-1, 1, tuple(forced)), seed)
    kept = forced[:count]
    assert sorted(found[found > 1].tolist()) == sorted(kept)


@given(st.integers(0, 1000))
def test_forced_values_occur_in_the_view_of_a_strided_input(seed: int) -> None:
    """In a view with gaps, an offset and a repeated axis the forced values are elements of it."""
    spec = TensorSpec(DType.FLOAT16, (3, 2, 4), (0, 16, 2), 5, (40,))
    found = values(spec, ValueRange(-1, 1, (7.0, 8.0, 9.0, math.inf)), seed)
    assert {7.0, 8.0, 9.0, math.inf} <= set(found.reshape(-1).tolist())
    assert (found[0] == found[2]).all()


def test_overlapping_views_force_as_many_as_have_room() -> None:
    """A view whose elements share storage takes one forced value for each place it shows."""
    spec = TensorSpec(DType.FLOAT32, (2, 2), (1, 1), 0, (3,))
    found = values(spec, ValueRange(0, 1, (5.0, 6.0, 7.0, 8.0)))
    assert set(found.reshape(-1).tolist()) == {5.0, 6.0, 7.0}


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        (None, ValueRange()),
        ((), ValueRange()),
        ((None, None), ValueRange()),
        ((None, 5), ValueRange(-2, 5)),
        ((-7, None), ValueRange(-7, 2)),
        ((1, 1), ValueRange(1, 1)),
        ((math.inf,), ValueRange(math.inf, math.inf)),
        ((-math.inf,), ValueRange(-math.inf, -math.inf)),
        ((0, 1, 3, -math.inf), ValueRange(0, 1, (3.0, -math.inf))),
    ],
)
def test_range_entries(entry: object, wanted: ValueRange) -> None:
    """None, pairs with defaults, and further values are read as TTK means them."""
    assert ValueRange.parse(entry) == wanted


def test_a_single_nan_stands_for_both_bounds() -> None:
    """As a single infinity does; a single finite number is refused, for a bound is missing."""
    assert ValueRange.parse((math.nan,)).is_nan


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ((2, 1), "the lower bound comes first"),
        ((None, -3), "the lower bound comes first"),
        ((math.inf, -math.inf), "the lower bound comes first"),
        ((1,), r"a range is \(low, high\)"),
        (1, r"a range is \(low, high\)"),
        (("a", "b"), "give numbers"),
        ((True, False), "give numbers"),
        ((0, 1, None), "give numbers"),
        ((0, 10**400), "too large"),
    ],
)
def test_range_entries_that_are_refused(entry: object, said: str) -> None:
    """Reversed bounds and anything that is no number are refused."""
    with pytest.raises(CellError, match=said):
        ValueRange.parse(entry)
