"""The ratios of `cross_check`, and what a figure of 0 means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.validation import LEVELS, ErrorStatistics, cross_check, cross_check_arrays, examine

F32 = DType.FLOAT32


def test_each_ratio_has_its_limit() -> None:
    """The device's figure is divided by the other's, and the level gives the limits."""
    first = ErrorStatistics(6.0, 1.5, 0.75, 3)
    second = ErrorStatistics(2.0, 1.0, 1.0, 1)
    found = cross_check(first, second)
    assert (found.level, found.passed) == ("L1", False)
    assert {name: (ratio.value, ratio.limit) for name, ratio in found.ratios.items()} == {
        "max_rel_error": (3.0, 5.0),
        "mean_rel_error": (1.5, 1.5),
        "rmse": (0.75, 1.5),
        "small_error_count": (3.0, 2.0),
    }
    assert [name for name, ratio in found.ratios.items() if not ratio.passed] == [
        "small_error_count"
    ]
    expected = "small_error_count is 3 times the other implementation's, at most 2 is allowed"
    assert found.reason == expected


@pytest.mark.parametrize(
    ("first", "second", "ratio", "passed"),
    [
        (ErrorStatistics(), ErrorStatistics(), 1.0, True),
        (ErrorStatistics(), ErrorStatistics(1e-9, 1e-9, 1e-9), 0.0, True),
        (ErrorStatistics(1e-9, 1e-9, 1e-9), ErrorStatistics(), math.inf, False),
        (ErrorStatistics(1e-9, 1e-9, 1e-9), ErrorStatistics(1e-9, 1e-9, 1e-9), 1.0, True),
    ],
)
def test_figures_of_0(
    first: ErrorStatistics, second: ErrorStatistics, ratio: float, passed: bool
) -> None:
    """Both exact is a ratio of 1; an error against none is infinite."""
    for level in LEVELS:
        found = cross_check(first, second, level)
        assert found.passed == passed
        for name in ("max_rel_error", "mean_rel_error", "rmse"):
            assert found.ratios[name].value == ratio


@pytest.mark.parametrize(
    ("first", "second", "ratio"), [(0, 0, 1.0), (0, 3, 0.0), (2, 0, 2.0), (3, 0, 3.0), (3, 3, 1.0)]
)
def test_counts_of_0(first: int, second: int, ratio: float) -> None:
    """A count is divided by 1 at least."""
    found = cross_check(
        ErrorStatistics(small_error_count=first), ErrorStatistics(small_error_count=second)
    )
    assert found.ratios["small_error_count"].value == ratio
    assert found.passed == (ratio <= 2)


def test_statistics_from_two_places_and_arrays_in_one_agree() -> None:
    """What `examine` finds of each output leads to the verdict on the arrays."""
    random = np.random.default_rng(0)
    golden = random.uniform(-1, 1, (50, 20)).astype(np.float32)
    outputs = [
        golden * (1 + random.normal(0, scale, golden.shape).astype(np.float32))
        for scale in (2e-6, 1e-6)
    ]
    statistics = [examine(output, golden, dtype=F32)[1].statistics for output in outputs]
    for level in LEVELS:
        found = cross_check(statistics[0], statistics[1], level)
        assert found == cross_check_arrays(outputs[0], golden, outputs[1], dtype=F32, level=level)
    assert cross_check(statistics[1], statistics[0], "L2").passed


def test_a_mismatch_is_named() -> None:
    """The reason says whose output has NaN where the golden has none."""
    golden = np.ones(3, np.float32)
    broken = golden.copy()
    broken[1] = np.nan
    found = cross_check_arrays(broken, golden, golden, dtype=F32)
    assert not found.passed
    assert "1 of 3 elements of actual, first at [1]: got nan, golden 1" in found.reason
    found = cross_check_arrays(golden, golden, broken, dtype=F32)
    assert not found.passed
    assert "1 of 3 elements of other, first at [1]: got nan, golden 1" in found.reason


def test_a_level_that_is_not_served() -> None:
    """It is refused by name."""
    one = np.ones(1, np.float32)
    with pytest.raises(Problem, match="level is L3; allowed is L0, L1, L2") as caught:
        cross_check(ErrorStatistics(), ErrorStatistics(), "L3")
    assert caught.value.reason is Reason.ATTRIBUTE_INVALID
    with pytest.raises(Problem, match="level is L3"):
        cross_check_arrays(one, one, one, dtype=F32, level="L3")


@pytest.mark.parametrize(
    ("other", "reason", "argument"),
    [
        (np.ones(3, np.float32), Reason.SHAPE_MISMATCH, "other"),
        (np.ones(2, np.float16), Reason.DTYPE_NOT_ALLOWED, "other"),
    ],
)
def test_arrays_that_do_not_belong_together(other: Any, reason: Reason, argument: str) -> None:
    """Another shape or dtype is refused, and the parameter is named."""
    two = np.ones(2, np.float32)
    with pytest.raises(Problem) as caught:
        cross_check_arrays(two, two, other, dtype=F32)
    assert caught.value.reason is reason
    assert str(caught.value).startswith(argument)
