"""How values are distributed. The seeds are fixed, so that no test here can fail by chance."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec, view_array
from opferry.validation import Distribution, Recipe, ValueRange, generate

COUNT = 400_000
LOW, HIGH = -3.0, 5.0
SEEDS = (0, 1, 2)

# five standard errors of a mean, a variance and a share, for COUNT elements
UNIFORM_DEVIATION = (HIGH - LOW) / 12**0.5
MANY = 5 / COUNT**0.5


def sample(dtype: DType, how: Distribution, seed: int) -> NDArray[np.float64]:
    recipe = Recipe(TensorSpec(dtype, (COUNT,)), ValueRange(LOW, HIGH), how, seed, "a", "cos")
    made = generate(recipe)
    return view_array(made.spec, made.data).astype(np.float64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", list(DType))
def test_uniform(dtype: DType, seed: int) -> None:
    """Mean, variance and the share below each of 15 values are the uniform distribution's."""
    values = sample(dtype, Distribution.UNIFORM, seed)
    assert abs(values.mean() - 1) < MANY * UNIFORM_DEVIATION
    # the fourth moment of a uniform value is 9/5 of the variance's square
    assert abs(values.var() / UNIFORM_DEVIATION**2 - 1) < MANY * 0.8**0.5 + ROUNDING[dtype]
    for step in range(1, 16):
        # beside the values of the dtypes: which of them lie below is no question of equality
        cut = LOW + step * (HIGH - LOW) / 16 + 2**-9
        share = (values < cut).mean()
        wanted = (cut - LOW) / (HIGH - LOW)
        assert abs(share - wanted) < MANY * 0.5 + ROUNDING[dtype]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", list(DType))
def test_normal(dtype: DType, seed: int) -> None:
    """Mean, variance and the share below 13 values are those of the normal distribution, cut."""
    values = sample(dtype, Distribution.NORMAL, seed)
    normal = NormalDist()
    kept = 1 - 2 * normal.cdf(-4)
    # the variance of a normal distribution that is cut at 4 standard deviations
    variance = 1 - 2 * 4 * normal.pdf(4) / kept
    deviation = (HIGH - LOW) / 8
    assert abs(values.mean() - 1) < MANY * deviation
    assert abs(values.var() / deviation**2 - variance) < MANY * 2**0.5 + ROUNDING[dtype]
    for step in range(-6, 7):
        cut = 1 + step * deviation / 2 + 2**-9
        wanted = (normal.cdf((cut - 1) / deviation) - normal.cdf(-4)) / kept
        assert abs((values < cut).mean() - wanted) < MANY * 0.5 + ROUNDING[dtype]
    # both sides alike, and the tails are there: 3.2e-5 beyond 3.9 standard deviations is 13 values
    assert abs((values < 1).mean() - (values > 1).mean()) < MANY + ROUNDING[dtype]
    assert (np.abs(values - 1) > 3.8 * deviation).sum() > 20


ROUNDING = {DType.FLOAT32: 1e-6, DType.FLOAT16: 2e-3, DType.BFLOAT16: 1e-2}
"""What rounding to the dtype adds: at most half a spacing of the values, over the deviation."""


def test_neighbours_and_inputs_do_not_correlate() -> None:
    """Elements at distances of 1 to 16, two seeds and two inputs are independent."""
    values = sample(DType.FLOAT32, Distribution.UNIFORM, 0) - 1
    scale = UNIFORM_DEVIATION**2
    for distance in range(1, 17):
        assert abs((values[:-distance] * values[distance:]).mean()) < MANY * scale
    other = sample(DType.FLOAT32, Distribution.UNIFORM, 1) - 1
    assert abs((values * other).mean()) < MANY * scale


def test_no_point_is_left_out() -> None:
    """Of a range of 1,001 float16 values each occurs, in its share of the points."""
    spec = TensorSpec(DType.FLOAT16, (COUNT,))
    made = generate(Recipe(spec, ValueRange(1024, 2024), seed=3))
    found, counts = np.unique(view_array(made.spec, made.data).astype(int), return_counts=True)
    assert found.tolist() == list(range(1024, 2025))
    inner = counts[1:-1]
    assert abs(inner - COUNT / 1000).max() < 6 * (COUNT / 1000) ** 0.5
    # half of what rounds to a bound lies beyond it
    assert 130 < counts[0] < 270
    assert 130 < counts[-1] < 270
