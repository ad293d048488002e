"""Rounding to the dtypes in one step, and the unit in the last place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.validation.rounding import FORMATS, round_array, round_value, ulp

_near_ties = st.builds(
    lambda bits, nudge: (
        float(
            np.nextafter(
                float(np.array(bits << 16 | 0x8000, np.uint32).view(np.float32)),
                math.inf * nudge if nudge else 0.0,
            )
        )
        if nudge
        else float(np.array(bits << 16 | 0x8000, np.uint32).view(np.float32))
    ),
    st.integers(0, 2**16 - 1).filter(lambda bits: (bits >> 7) & 0xFF != 0xFF),
    st.sampled_from([-1, 0, 1]),
)
_finite = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-70000, 70000) | _near_ties


@pytest.mark.parametrize("dtype", list(DType))
def test_largest_finite_values(dtype: DType) -> None:
    """The largest value and the overflow limit are those of the formats."""
    largest = {"float32": 3.4028234663852886e38, "float16": 65504.0}.get(
        dtype.value, 3.3895313892515355e38
    )
    form = FORMATS[dtype]
    assert form.largest == largest
    assert round_value(form.overflow, dtype) == math.inf
    assert round_value(math.nextafter(form.overflow, 0), dtype) == largest


@given(_finite)
def test_rounds_to_the_nearest_by_exhaustive_search(judge: Any, value: float) -> None:
    """For the 16-bit dtypes the result is the nearest of all values, ties going to even."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        wanted = judge.nearest(value, dtype)
        found = round_value(value, dtype)
        assert found == wanted
        assert math.copysign(1, found) == math.copysign(1, value)
        array = round_array(np.array([value]), dtype)
        assert array.dtype == dtype.numpy
        assert float(array[0]) == wanted


@given(_finite)
def test_rounds_to_float32_as_numpy_does(value: float) -> None:
    """For float32 the processor's conversion is the reference."""
    with np.errstate(all="ignore"):
        wanted = float(np.float64(value).astype(np.float32))
    assert round_value(value, DType.FLOAT32) == wanted


@given(st.integers(0, 2**16 - 1))
def test_unit_in_the_last_place(judge: Any, bits: int) -> None:
    """The unit is the distance to the neighbour away from zero, for every 16-bit value."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        value = float(np.array(bits, np.uint16).view(dtype.numpy))
        if math.isfinite(value):
            assert ulp(value, dtype) == judge.ulp(value, dtype)


def test_nan_and_infinity_stay() -> None:
    """What is not finite is returned as it is."""
    assert math.isnan(round_value(math.nan, DType.FLOAT16))
    assert round_value(-math.inf, DType.BFLOAT16) == -math.inf
    assert np.isnan(round_array(np.array([np.nan]), DType.BFLOAT16)).all()
