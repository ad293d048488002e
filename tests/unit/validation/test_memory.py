"""Generation and comparison work in blocks: beside the tensors they take a few MiB."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import (
    STANDARDS,
    ValueRange,
    compare,
    cross_check_arrays,
    examine,
    generate_input,
)

COUNT = 4 * 1024 * 1024
MIB = 1024 * 1024


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that is allocated while *work* runs, what it returns included."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", list(DType))
def test_generation(dtype: DType) -> None:
    """A tensor of 4 Mi elements, 32 MiB in float64, is made without a copy of that size."""
    spec = TensorSpec(dtype, (COUNT,))
    values = ValueRange(-1, float("inf"), (5.0,))
    made = peak_bytes(
        lambda: generate_input(spec, values, seed=0, case_name="large", input_name="cos")
    )
    assert made < spec.data_bytes + 8 * MIB


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("golden_dtype", [np.float16, np.float64])
def test_comparison(standard: str, golden_dtype: type) -> None:
    """Comparing 4 Mi elements that all differ takes no array of that size."""
    actual = np.full((COUNT // 64, 64), 1.5, np.float16)
    golden = np.ones((COUNT // 64, 64), golden_dtype)
    assert peak_bytes(lambda: compare(actual, golden, standard, dtype=DType.FLOAT16)) < 12 * MIB


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("golden_dtype", [np.float16, np.float64])
@pytest.mark.parametrize("shape", [(COUNT // 64, 64), (COUNT,)])
def test_findings(standard: str, golden_dtype: type, shape: tuple[int, ...]) -> None:
    """Findings on 4 Mi elements that all fail, half of them by NaN, take no array of that size."""
    actual = np.full(shape, 1.5, np.float16)
    actual[: shape[0] // 2] = np.nan
    golden = np.ones(shape, golden_dtype)
    peak = peak_bytes(lambda: examine(actual, golden, standard, dtype=DType.FLOAT16))
    assert peak < 12 * MIB


def test_cross_check() -> None:
    """Nor does it take one to compare two outputs with a golden."""
    golden = np.ones(COUNT, np.float16)
    actual, other = golden * np.float16(1.5), golden * np.float16(1.25)
    peak = peak_bytes(lambda: cross_check_arrays(actual, golden, other, dtype=DType.FLOAT16))
    assert peak < 12 * MIB
