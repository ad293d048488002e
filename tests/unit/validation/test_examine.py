"""Findings agree with brute force over every element, and with the verdict they stand beside."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.validation import STANDARDS, _scan, compare, examine
from opferry.validation.rounding import round_array, ulp_distances

F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
Array = NDArray[Any]
SHAPES = [(), (1,), (7,), (40,), (5, 6), (3, 2, 4), (2, 3, 4, 5), (30, 9, 17)]
SMALL = {F32: 2**-14, F16: 2**-11, BF16: 2**-8}
SMALL_ERROR = {F32: 2**-30, F16: 2**-16, BF16: 2**-16}


class Case(NamedTuple):
    """An output, its golden, and how many elements make a block."""

    dtype: DType
    actual: Array
    golden: Array
    block: int

    def examine(self, standard: str, **words: Any) -> Any:
        """The findings of a pass in small blocks."""
        with mock.patch.object(_scan, "BLOCK_ELEMENTS", self.block):
            return examine(self.actual, self.golden, standard, dtype=self.dtype, **words)

    def pairs(self) -> list[tuple[float, float, float]]:
        """The output, the golden and the golden rounded, element by element."""
        # conversion of a signalling NaN warns
        with np.errstate(all="ignore"):
            rounded = round_array(self.golden.astype(np.float64), self.dtype)
            actual, golden, nearest = (
                side.reshape(-1).astype(np.float64).tolist()
                for side in (self.actual, self.golden, rounded)
            )
        return list(zip(actual, golden, nearest, strict=True))


def from_bits(bits: Any, dtype: DType) -> Array:
    """Values of a dtype from any bits."""
    words = np.asarray(bits, np.uint32)
    return (words if dtype is F32 else (words >> 16).astype(np.uint16)).view(dtype.numpy)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A golden of ordinary values and any bits, and an output that is off here and there."""
    dtype = draw(st.sampled_from(list(DType)))
    shape = draw(st.sampled_from(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = math.prod(shape)
    with np.errstate(all="ignore"):
        golden = random.uniform(-2, 2, count) * 2.0 ** draw(st.integers(-24, 12))
        golden = golden.astype(dtype.numpy)
        any_bits = from_bits(random.integers(0, 2**32, count, np.uint64), dtype)
        golden = np.where(
            random.random(count) < draw(st.sampled_from([0, 0.2, 1])), any_bits, golden
        )
        # a finite set of factors, so that some elements are equally bad
        factors = 1 + random.choice([0, 0, 2.0**-10, -(2.0**-7), 0.5, -1], count)
        actual = (golden.astype(np.float64) * factors).astype(dtype.numpy)
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], dtype.numpy)
        share = draw(st.sampled_from([0, 0, 0.1, 0.5]))
        actual = np.where(random.random(count) < share, random.choice(special, count), actual)
        if draw(st.booleans()):
            actual[: count // 2] = golden[: count // 2]
        if draw(st.booleans()):
            golden = golden.astype(np.float64) * (1 + random.choice([0, 2.0**-30], count))
    return Case(
        dtype,
        actual.reshape(shape),
        golden.reshape(shape),
        draw(st.sampled_from([1, 7, 64, 65536])),
    )


def is_finite(pair: tuple[float, float, float]) -> bool:
    """Whether output and golden are finite in the dtype."""
    return math.isfinite(pair[0]) and math.isfinite(pair[2])


def is_mismatch(pair: tuple[float, float, float]) -> bool:
    """Whether NaN or infinity meets something else."""
    same = pair[0] == pair[2] or (math.isnan(pair[0]) and math.isnan(pair[2]))
    return not is_finite(pair) and not same


def relative(a: float, g: float) -> float:
    """The relative error."""
    return abs(a - g) / (abs(g) + 1e-7)


def ordinal(value: float, dtype: DType) -> int:
    """Where a value stands among those of its dtype, 0 being 0."""
    (bits,) = struct.unpack("<H" if dtype is F16 else "<I", struct.pack(
        "<e" if dtype is F16 else "<f", abs(value)))  # fmt: skip
    return int(math.copysign(bits >> 16 if dtype is BF16 else bits, value))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_distances_of_16_bits(dtype: DType) -> None:
    """The distance is the number of steps in the sorted list of all values of the dtype."""
    every = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(all="ignore"):
        every = every[np.isfinite(every)]
    places = {value: i for i, value in enumerate(sorted(set(every.astype(np.float64).tolist())))}
    where = np.array([places[value] for value in every.astype(np.float64).tolist()])
    random = np.random.default_rng(0)
    for first in [np.uint16(0), np.uint16(2**15), np.uint16(1), np.uint16(2**15 + 1)]:
        one = np.full(every.size, first, np.uint16).view(dtype.numpy)
        steps = np.abs(where - places[float(one[0])])
        np.testing.assert_array_equal(ulp_distances(every, one), steps)
    shuffled = random.permutation(every.size)
    np.testing.assert_array_equal(
        ulp_distances(every, every[shuffled]), np.abs(where - where[shuffled])
    )


@given(st.sampled_from(list(DType)), st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=60))
def test_distances_by_integers(dtype: DType, bits: list[int]) -> None:
    """The distance is the difference of the bits as signed magnitudes, for all three dtypes."""
    values = from_bits(bits, dtype)
    with np.errstate(all="ignore"):
        values = values[~np.isnan(values)]
    for a, g in zip(values, values[::-1], strict=True):
        one, other = (np.array([value]) for value in (a, g))
        expected = abs(ordinal(float(a), dtype) - ordinal(float(g), dtype))
        assert int(ulp_distances(one, other)[0]) == expected


@settings(max_examples=50)
@given(cases(), st.sampled_from(STANDARDS))
def test_counts_and_verdict(case: Case, standard: str) -> None:
    """Counts add up to the elements, and the verdict is that of `compare`."""
    comparison, findings = case.examine(standard)
    with mock.patch.object(_scan, "BLOCK_ELEMENTS", case.block):
        again = compare(case.actual, case.golden, standard, dtype=case.dtype)
    # NaN is unequal to itself
    assert repr(comparison) == repr(again)
    pairs = case.pairs()
    finite_count = sum(map(is_finite, pairs))
    for histogram in (findings.relative_errors, findings.ulp_distances):
        assert histogram.exact_count + sum(histogram.counts.values()) == finite_count
        assert all(histogram.counts.values())
        assert list(histogram.counts) == sorted(histogram.counts)
    failing_count = comparison.element_count - comparison.passing_count
    if findings.heat_map is None:
        assert failing_count == 0
        assert findings.failing_slice is None
    else:
        assert sum(findings.heat_map.failing) == failing_count
        assert math.prod(findings.heat_map.bins) == len(findings.heat_map.failing)
        assert math.prod(findings.heat_map.extents) == comparison.element_count
        assert (findings.failing_slice is None) == (case.actual.ndim == 0)


@settings(max_examples=40)
@given(cases())
def test_histograms(case: Case) -> None:
    """Errors are counted by the exponents that frexp and the length of integers give."""
    _, findings = case.examine("mixed")
    relative_errors: Counter[int | None] = Counter()
    distances: Counter[int | None] = Counter()
    for a, g, rounded in filter(is_finite, case.pairs()):
        error = relative(a, g)
        exponent = max(-48, min(48, math.frexp(error)[1] - 1)) if error else None
        relative_errors[exponent] += 1
        steps = abs(ordinal(a, case.dtype) - ordinal(rounded, case.dtype))
        distances[steps.bit_length() - 1 if steps else None] += 1
    for found, expected in (
        (findings.relative_errors, relative_errors),
        (findings.ulp_distances, distances),
    ):
        assert found.exact_count == expected.pop(None, 0)
        assert found.counts == dict(expected)


@settings(max_examples=60)
@given(cases(), st.sampled_from(STANDARDS), st.sampled_from([0, 1, 3, 8, 1000]))
def test_worst_elements(case: Case, standard: str, worst_count: int) -> None:
    """Mismatches come first, then the worst finite pairs, of equal ones the earlier."""
    _, findings = case.examine(standard, worst_count=worst_count)
    share = 1e-4 if case.dtype is F32 else 1e-3
    order: list[tuple[bool, float, int]] = []
    pairs = case.pairs()
    for i, (a, g, rounded) in enumerate(pairs):
        if is_mismatch((a, g, rounded)):
            order.append((False, 0.0, i))
        if not is_finite((a, g, rounded)):
            continue
        error = abs(a - g)
        same_bits = (a, math.copysign(1, a)) == (rounded, math.copysign(1, rounded))
        is_off = not same_bits if standard == "binary" else error > 0
        if standard == "stat_rel_err":
            error = relative(a, g)
        elif standard == "close":
            error -= 1e-8 + share * abs(g)
        if is_off:
            order.append((True, -error, i))
    expected = [i for _, _, i in sorted(order)[:worst_count]]
    shape = case.actual.shape
    assert [
        int(np.ravel_multi_index(worst.element.index, shape)) if shape else 0
        for worst in findings.worst
    ] == expected
    for worst, i in zip(findings.worst, expected, strict=True):
        a, g, rounded = pairs[i]
        assert repr((worst.element.actual, worst.element.golden)) == repr((a, g))
        if math.isnan(a) or math.isnan(g):
            assert worst.ulps is None
        elif is_finite(pairs[i]):
            assert worst.ulps == abs(ordinal(a, case.dtype) - ordinal(rounded, case.dtype))


@given(cases())
def test_statistics(case: Case) -> None:
    """The statistics are those of the elements that are not small, and a count of the others."""
    _, findings = case.examine("mixed")
    pairs = [pair for pair in case.pairs() if is_finite(pair)]
    small = SMALL[case.dtype]
    errors = [relative(a, g) for a, g, _ in pairs if abs(g) >= small]
    squares = [(a - g) ** 2 for a, g, _ in pairs if abs(g) >= small]
    found = findings.statistics
    assert found.max_rel_error == max(errors, default=0.0)
    if errors:
        assert found.mean_rel_error == pytest.approx(math.fsum(errors) / len(errors), rel=1e-12)
        root = math.sqrt(math.fsum(squares) / len(squares))
        assert found.rmse == pytest.approx(root, rel=1e-12)
    else:
        assert found.mean_rel_error == found.rmse == 0
    limit = SMALL_ERROR[case.dtype]
    assert found.small_error_count == sum(
        abs(g) < small and abs(a - g) > limit for a, g, _ in pairs
    )


@settings(max_examples=40)
@given(cases())
def test_heat_map(case: Case) -> None:
    """Each failing element is counted in the bin that its place on each axis falls into."""
    _, findings = case.examine("binary")
    shape = (1, 1, 1, *case.actual.shape)
    extents = (math.prod(shape[:-2]), *shape[-2:])
    bins = tuple(map(min, extents, (12, 24, 12)))
    expected = np.zeros(bins, np.int64)
    starts = [[i * n // k for i in range(k)] for n, k in zip(extents, bins, strict=True)]
    for i, (a, _, rounded) in enumerate(case.pairs()):
        equal = repr(a) == repr(rounded)
        if not equal:
            where = np.unravel_index(i, extents)
            place = tuple(
                max(b for b, first in enumerate(begins) if first <= index)
                for index, begins in zip(where, starts, strict=True)
            )
            expected[place] += 1
    if findings.heat_map is None:
        assert not expected.any()
    else:
        assert findings.heat_map.extents == extents
        assert findings.heat_map.bins == bins
        assert findings.heat_map.failing == tuple(expected.reshape(-1).tolist())


def test_a_failing_slice() -> None:
    """The slice is the row of the first element that does not pass, on request only."""
    golden = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    actual = golden.copy()
    actual[1, 0, 2] = 0
    actual[1, 2, 1] = np.nan
    _, findings = examine(actual, golden, dtype=F32)
    assert findings.failing_slice is not None
    assert findings.failing_slice.index == (1, 0, 0)
    assert findings.failing_slice.actual == (12.0, 13.0, 0.0, 15.0)
    assert findings.failing_slice.golden == (12.0, 13.0, 14.0, 15.0)
    _, findings = examine(actual, golden, dtype=F32, with_slice=False)
    assert findings.failing_slice is None


def test_a_slice_of_a_long_axis_is_a_piece_of_it() -> None:
    """Of an axis of more than 1024 the slice is the piece with the failing element."""
    golden = np.ones((2, 3000), np.float16)
    actual = golden.copy()
    actual[1, 2500] = 3
    _, findings = examine(actual, golden, dtype=F16)
    assert findings.failing_slice is not None
    assert findings.failing_slice.index == (1, 2048)
    assert len(findings.failing_slice.actual) == len(findings.failing_slice.golden) == 952
    assert findings.failing_slice.actual[2500 - 2048] == 3


def test_distances_count_from_the_rounded_golden() -> None:
    """An output that is the rounded golden is 0 places off, though it has a relative error."""
    _, findings = examine(np.array([1.0], np.float16), np.array([1 + 2**-12]), dtype=F16)
    assert findings.ulp_distances.exact_count == 1
    assert findings.relative_errors.exact_count == 0
    assert findings.relative_errors.counts == {-13: 1}
    assert findings.worst[0].ulps == 0


def test_distances_beyond_finite_values() -> None:
    """Infinity is one step beyond the largest value, and NaN has no distance."""
    actual = np.array([np.inf, np.nan, -np.inf], np.float32)
    golden = np.array([np.finfo(np.float32).max, 1.0, np.inf], np.float32)
    _, findings = examine(actual, golden, dtype=F32)
    assert [worst.ulps for worst in findings.worst] == [1, None, 2 * 0x7F800000]
    assert findings.ulp_distances.exact_count == 0
    assert not findings.ulp_distances.counts


def test_exponents_are_clamped() -> None:
    """Relative errors under 2^-48 and from 2^48 on are counted at the ends."""
    actual = np.array([0.0, 3e38, 2.0**24], np.float32)
    golden = np.array([1e-300, 1.0, 0.0])
    golden[1] = 2**-30
    _, findings = examine(actual, golden, dtype=F32)
    assert findings.relative_errors.counts == {-48: 1, 47: 1, 48: 1}


def test_an_output_that_passes_has_no_heat_map() -> None:
    """Nothing fails: no heat map and no slice, but worst elements are named."""
    golden = np.ones((4, 5, 6), np.float32)
    actual = golden.copy()
    actual[3, 2, 1] += 2**-20
    comparison, findings = examine(actual, golden, dtype=F32)
    assert comparison.passed
    assert findings.heat_map is None
    assert findings.failing_slice is None
    assert [worst.element.index for worst in findings.worst] == [(3, 2, 1)]
    assert findings.worst[0].ulps == 8


@pytest.mark.parametrize("standard", STANDARDS)
def test_equal_arrays_have_nothing_to_find(standard: str) -> None:
    """Bit-equal arrays only count, NaN and infinity apart."""
    array = np.array([[1.0, -0.0, np.nan], [np.inf, 2**-14, 2**-15]], np.float16)
    comparison, findings = examine(array, array.copy(), standard, dtype=F16)
    assert comparison.passed
    assert findings.worst == ()
    assert findings.heat_map is None
    assert findings.relative_errors.exact_count == findings.ulp_distances.exact_count == 4
    assert findings.statistics.max_rel_error == 0


def test_equal_blocks_count_in_means() -> None:
    """Elements of blocks without errors dilute the means, where they are not small."""
    golden = np.ones(3 * _scan.BLOCK_ELEMENTS, np.float32)
    golden[-1000:] = 2**-15
    golden[-1] = np.inf
    golden[-2] = np.nan
    actual = golden.copy()
    actual[5] = 1.5
    _, findings = examine(actual, golden, dtype=F32)
    count = golden.size - 1000
    assert findings.statistics.mean_rel_error == pytest.approx(0.5 / (1 + 1e-7) / count, rel=1e-12)
    assert findings.statistics.rmse == pytest.approx(math.sqrt(0.25 / count), rel=1e-12)


def test_of_equally_bad_elements_the_first_are_named() -> None:
    """Of 100 that are equally bad those in front are named, behind the one that is worse."""
    golden = np.ones(100, np.float32)
    actual = np.full(100, 1.5, np.float32)
    actual[60] = 2
    for block in (7, 50, 100):
        case = Case(F32, actual, golden, block)
        _, findings = case.examine("mixed", worst_count=4)
        assert [worst.element.index for worst in findings.worst] == [(60,), (0,), (1,), (2,)]


def test_a_strided_output() -> None:
    """Views with any strides are examined like others."""
    golden = np.arange(24, dtype=np.float32).reshape(4, 6).T
    actual = golden.copy()
    actual[2, 1] = -1
    for side in (actual, np.asfortranarray(actual)):
        _, findings = examine(side, golden, dtype=F32)
        assert findings.failing_slice is not None
        assert findings.failing_slice.actual == (2.0, -1.0, 14.0, 20.0)
        assert findings.worst[0].element.index == (2, 1)


def test_a_negative_number_of_worst_elements() -> None:
    """It is refused by name."""
    one = np.ones(1, np.float32)
    with pytest.raises(Problem, match="worst_count is -1") as caught:
        examine(one, one, dtype=F32, worst_count=-1)
    assert caught.value.reason is Reason.ATTRIBUTE_INVALID
