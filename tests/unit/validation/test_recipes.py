"""Recipes: what they refuse, their slices, and every bit by another implementation."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.validation import (
    Distribution,
    Recipe,
    ValueRange,
    check_digest,
    digest,
    generate,
    generate_slice,
)
from opferry.validation.inputs import BLOCK_ELEMENTS
from opferry.validation.rounding import FORMATS, round_value
from tests.support import exact_recipes as exact

DTYPES = st.sampled_from(list(DType))
DISTRIBUTIONS = st.sampled_from(list(Distribution))
BOTH = [(dtype, how) for dtype in DType for how in Distribution]


def recipe_of(dtype: DType, count: int, values: ValueRange, how: Distribution) -> Recipe:
    return Recipe(TensorSpec(dtype, (count,)), values, how, 7, "über", "sin")


def bits_of(recipe: Recipe) -> NDArray[Any]:
    return np.frombuffer(generate(recipe).data, f"u{recipe.spec.dtype.itemsize}")


def exact_bits(recipe: Recipe) -> list[int]:
    """All elements by the other implementation; only of finite bounds that differ."""
    dtype = recipe.spec.dtype
    low, high = (
        exact.value_of(exact.nearest_bits(Fraction(bound), dtype), dtype)
        for bound in (recipe.values.low, recipe.values.high)
    )
    drawn = itertools.islice(exact.draws(recipe), recipe.spec.storage_count)
    return [exact.element_bits(recipe, draw, low, high) for draw in drawn]


@st.composite
def bounds(draw: st.DrawFn) -> tuple[DType, float, float]:
    """A dtype and two bounds that it holds, in order: of any size, near, or neighbours."""
    dtype = draw(DTYPES)
    form = FORMATS[dtype]
    largest = exact.nearest_bits(Fraction(form.largest), dtype)
    first = draw(st.integers(0, largest))
    second = draw(st.integers(0, largest) | st.integers(first, min(first + 3, largest)))
    a, b = (float(exact.value_of(bits, dtype)) for bits in (first, second))
    low, high = sorted((draw(st.sampled_from([a, -a])), draw(st.sampled_from([b, -b]))))
    return dtype, low, high


@given(bounds(), DISTRIBUTIONS)
@example((DType.FLOAT32, -3.4e38, 3.4e38), Distribution.UNIFORM)
@example((DType.FLOAT32, -(2.0**-149), 2.0**-140), Distribution.UNIFORM)
@example((DType.FLOAT32, 2.0**-149, 2.0**-126), Distribution.NORMAL)
@example((DType.FLOAT32, -(2.0**-128), 2.0**-110), Distribution.NORMAL)
@example((DType.BFLOAT16, -(2.0**-133), 2.0**-126), Distribution.UNIFORM)
@example((DType.BFLOAT16, 2.0**-133, 2.0**-120), Distribution.NORMAL)
@example((DType.FLOAT16, -(2.0**-24), 2.0**-14), Distribution.UNIFORM)
@example((DType.FLOAT32, 1.0, 1.0 + 2.0**-23), Distribution.UNIFORM)
@example((DType.FLOAT32, 2.0**-149, 2.0**127), Distribution.UNIFORM)
def test_every_bit_is_the_exact_point_rounded_once(
    case: tuple[DType, float, float], how: Distribution
) -> None:
    """Fractions and plain integers give the same bits: no value is rounded twice."""
    dtype, low, high = case
    recipe = recipe_of(dtype, 33, ValueRange(low, high), how)
    if recipe.constant is None:
        assert bits_of(recipe).tolist() == exact_bits(recipe)


@pytest.mark.parametrize(("dtype", "how"), BOTH)
def test_many_elements_are_exact_too(dtype: DType, how: Distribution) -> None:
    """Several thousand elements of an uneven range, as above."""
    recipe = recipe_of(dtype, 4999, ValueRange(-3.5, 11.25), how)
    assert bits_of(recipe).tolist() == exact_bits(recipe)


@pytest.mark.parametrize(("dtype", "how"), BOTH)
def test_each_draw_meets_every_rounding_case(dtype: DType, how: Distribution) -> None:
    """In a range of fine points the 16-bit dtypes meet ties, and take them to even."""
    low, high = 1.0, 1.0 + 4 * FORMATS[dtype].spacing(1.0)
    recipe = recipe_of(dtype, 3000, ValueRange(low, high), how)
    found = bits_of(recipe).tolist()
    assert found == exact_bits(recipe)
    assert len(set(found)) == 5


@given(bounds(), DISTRIBUTIONS, st.integers(0, 2**64))
def test_values_lie_within_their_bounds(
    case: tuple[DType, float, float], how: Distribution, seed: int
) -> None:
    """No value is beyond a bound, infinite or NaN."""
    dtype, low, high = case
    recipe = replace(recipe_of(dtype, 100, ValueRange(low, high), how), seed=seed)
    for bits in bits_of(recipe).tolist():
        assert Fraction(low) <= exact.value_of(bits, dtype) <= Fraction(high)


LONG = 2 * BLOCK_ELEMENTS + 77
FORCED = ValueRange(-1, math.inf, (5.0, math.nan, -math.inf, 7.0))
WHOLE = {key: bits_of(recipe_of(key[0], LONG, FORCED, key[1])) for key in BOTH}


@given(st.sampled_from(BOTH), st.integers(0, LONG), st.integers(0, LONG))
@example((DType.FLOAT32, Distribution.UNIFORM), 0, LONG)
@example((DType.BFLOAT16, Distribution.NORMAL), BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS + 1)
@example((DType.FLOAT16, Distribution.NORMAL), 9, 9)
def test_slices_equal_the_whole(key: tuple[DType, Distribution], a: int, b: int) -> None:
    """Any part of the storage, made alone, is what stands there in the whole."""
    start, stop = min(a, b), max(a, b)
    found = generate_slice(recipe_of(key[0], LONG, FORCED, key[1]), start, stop)
    assert found.dtype == key[0].numpy
    assert (found.view(WHOLE[key].dtype) == WHOLE[key][start:stop]).all()


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (2, 1), (0, 11), (11, 11)])
def test_slices_outside_the_storage_are_refused(start: int, stop: int) -> None:
    """The error names the slice and the storage."""
    with pytest.raises(ValueError, match=f"elements {start} to {stop} of a storage of 10;"):
        generate_slice(Recipe(TensorSpec(DType.FLOAT32, (10,))), start, stop)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize(("dtype", "how"), BOTH)
def test_threads_do_not_change_a_bit(dtype: DType, how: Distribution, threads: int) -> None:
    """However the blocks are shared out, the data are the same."""
    found = generate(recipe_of(dtype, LONG, FORCED, how), threads=threads)
    assert bytes(found.data) == WHOLE[dtype, how].tobytes()


def test_a_shorter_tensor_has_the_same_elements() -> None:
    """An element does not depend on how many there are, nor on any block before it."""
    long = bits_of(recipe_of(DType.FLOAT32, LONG, ValueRange(), Distribution.UNIFORM))
    short = bits_of(recipe_of(DType.FLOAT32, 9, ValueRange(), Distribution.UNIFORM))
    assert (long[:9] == short).all()
    first, second = long[:BLOCK_ELEMENTS], long[BLOCK_ELEMENTS : 2 * BLOCK_ELEMENTS]
    assert (first == second).sum() < 5


@given(st.integers(0, 2**32), st.integers(0, 10**12))
def test_elements_far_out_are_made_alone(seed: int, start: int) -> None:
    """A slice far into a storage of terabytes is made at once, and is exact."""
    spec = TensorSpec(DType.FLOAT32, (4,), storage_shape=(10**12 + 10,))
    recipe = Recipe(spec, ValueRange(0, 1), seed=seed, case_name="a", input_name="cos")
    found = generate_slice(recipe, start, start + 3).view(np.uint32).tolist()
    drawn = itertools.islice(exact.draws(recipe, start // 8), start % 8, start % 8 + 3)
    assert found == [exact.element_bits(recipe, draw, Fraction(0), Fraction(1)) for draw in drawn]


def test_forced_values_follow_the_recipe() -> None:
    """The places come from words of their own, and the other elements stay as they were."""
    plain = recipe_of(DType.FLOAT32, 10, ValueRange(0, 1), Distribution.UNIFORM)
    key = exact.recipe_key(7, "über", "sin")
    first, second = (word % 10 for word in itertools.islice(exact.philox_words(key, 2**128), 2))
    wanted = bits_of(plain).view(np.float32).tolist()
    wanted[first] = 5.0
    wanted[second if second != first else (second + 1) % 10] = 6.0
    found = bits_of(replace(plain, values=ValueRange(0, 1, (5.0, 6.0)))).view(np.float32)
    assert found.tolist() == wanted


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0, 0.1, 1e-45, -1e30])
def test_bits_of_constants(dtype: DType, value: float) -> None:
    """A constant's bits are numpy's of the value, NaN's the canonical ones."""
    found = bits_of(recipe_of(dtype, 3, ValueRange(value, value), Distribution.NORMAL))
    wanted = np.array([round_value(value, dtype)] * 3).astype(dtype.numpy)
    assert (found == wanted.view(found.dtype)).all()


def test_another_version_is_refused_with_a_remedy() -> None:
    """A recipe of another generator is no silent difference."""
    with pytest.raises(Problem, match="for the generator opferry-inputs-1, and this is") as caught:
        Recipe(TensorSpec(DType.FLOAT32, (1,)), input_name="cos", version="opferry-inputs-1")
    assert caught.value.reason is Reason.RECIPE_MISMATCH
    assert "install the same opferry on both sides" in str(caught.value)


def test_a_malformed_tensor_is_refused() -> None:
    """A view beyond its storage is refused before anything is made."""
    with pytest.raises(Problem, match="cos addresses element 9 of a storage of 3 elements"):
        Recipe(TensorSpec(DType.FLOAT32, (10,), storage_shape=(3,)), input_name="cos")


def test_digests_are_compared() -> None:
    """The same digest passes; another one is an error that names both and what to do."""
    recipe = recipe_of(DType.FLOAT32, 10, ValueRange(), Distribution.UNIFORM)
    made = generate(recipe)
    check_digest(recipe, made, digest(made))
    with pytest.raises(Problem, match=r"sin has the digest .* send the data instead") as caught:
        check_digest(recipe, made, bytes(8))
    assert caught.value.reason is Reason.RECIPE_MISMATCH
    assert (caught.value.given, caught.value.allowed) == ("00" * 8, digest(made).hex())


def test_the_key_is_stable_and_names_everything() -> None:
    """A key worked out by hand once: Python's hash, which changes by process, has no part."""
    recipe = Recipe(TensorSpec(DType.FLOAT32, (1,)), seed=3, case_name="a", input_name="cos")
    assert recipe.key == exact.recipe_key(3, "a", "cos") == KEY_3_A_COS
    others = [replace(recipe, **{field: "4"}).key for field in ("case_name", "input_name")]
    assert len({recipe.key, replace(recipe, seed=4).key, *others}) == 4


KEY_3_A_COS = 0x46673C16A919DE67F3B4F65B0473EA77
"""sha256sum of ["opferry-inputs-2", 3, "a", "cos"]: its first 16 bytes, little-endian."""
