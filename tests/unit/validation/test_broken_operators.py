"""Operators that are wrong in ways that have happened: every standard must notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry.validation import STANDARDS, CaseStatus, OutputStatus, exit_code, read_cases, run_cases

EXAMPLES = Path(__file__).parents[3] / "examples" / "rotary_cases.csv"
Arrays = dict[str, Any]


def flip_sin(arrays: Arrays) -> None:
    """The sign of sin is wrong."""
    arrays["sin"] = -arrays["sin"]


def swap_halves(outputs: Arrays) -> None:
    """The halves of grad_query are swapped."""
    half = outputs["grad_query"].shape[-1] // 2
    outputs["grad_query"] = np.roll(outputs["grad_query"], half, axis=-1)


def share_halves(arrays: Arrays) -> None:
    """The first half of sin is used for both."""
    half = arrays["sin"].shape[-1] // 2
    arrays["sin"][..., half:] = arrays["sin"][..., :half]


def drop_last_key_head(outputs: Arrays) -> None:
    """The last head of grad_key was not written."""
    outputs["grad_key"][..., -1, :] = 0


def use_first_batch(arrays: Arrays) -> None:
    """Every batch uses the cos of the first."""
    arrays["cos"][:] = arrays["cos"][:1]


BREAKAGES = [
    ("before", flip_sin, {"grad_query", "grad_key"}),
    ("after", swap_halves, {"grad_query"}),
    ("before", share_halves, {"grad_query", "grad_key"}),
    ("after", drop_last_key_head, {"grad_key"}),
    ("before", use_first_batch, {"grad_query", "grad_key"}),
]


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize(
    ("when", "breakage", "hit"), BREAKAGES, ids=[item[1].__name__ for item in BREAKAGES]
)
def test_a_broken_operator_fails(
    make_file: Any,
    reference_call: Callable[..., Any],
    standard: str,
    when: str,
    breakage: Callable[[Arrays], None],
    hit: set[str],
) -> None:
    """Exactly the outputs that are wrong fail, with a worst element that is named."""
    file = make_file({}, {"tensor_dtypes": "('bf16',)"}, {"tensor_dtypes": "('fp16',)"})
    results = list(
        run_cases(
            file.cases,
            lambda call, inputs: reference_call(call, inputs, **{when: breakage}),
            standard=standard,
        )
    )
    assert exit_code(results) == 1
    for result in results:
        assert result.status is CaseStatus.FAIL
        failed = {o.name: o for o in result.outputs if o.status is OutputStatus.FAIL}
        assert set(failed) == hit
        for name, output in failed.items():
            assert output.comparison is not None
            assert output.comparison.worst is not None
            assert f"{name}: " in result.reason
            assert f"worst at {list(output.comparison.worst.index)}" in result.reason


@pytest.mark.parametrize(
    ("dtype", "floor"), [("fp32", 1e-2), ("fp16", 1e-1), ("bf16", 1.0)], ids=str
)
@pytest.mark.parametrize(("factor", "passed"), [(0.5, True), (1.5, False)])
def test_one_element_off_by_the_floor(
    make_file: Any,
    reference_call: Callable[..., Any],
    dtype: str,
    floor: float,
    factor: float,
    passed: bool,
) -> None:
    """One element of many may be off by less than the floor, not by more; the place is named."""
    shapes = "((1,4,8,16),(1,4,8,16),(1,4,1,16),(1,4,1,16),None,None)"
    file = make_file({"tensor_view_shapes": shapes, "tensor_dtypes": f"('{dtype}',)"})

    def after(outputs: Arrays) -> None:
        value = float(outputs["grad_query"][0, 2, 5, 7])
        outputs["grad_query"][0, 2, 5, 7] = value + factor * floor

    (result,) = run_cases(
        file.cases, lambda call, inputs: reference_call(call, inputs, None, after)
    )
    assert (result.status is CaseStatus.PASS) == passed
    comparison = result.outputs[0].comparison
    assert comparison is not None
    assert comparison.worst is not None
    assert comparison.worst.index == (0, 2, 5, 7)
    assert comparison.passing_count == comparison.element_count - 1
    if not passed:
        assert "grad_query: the largest absolute error is" in result.reason


@pytest.mark.parametrize(
    ("when", "breakage"), [("before", flip_sin), ("after", swap_halves)], ids=["sin", "halves"]
)
def test_the_example_file_notices(
    reference_call: Callable[..., Any], when: str, breakage: Callable[[Arrays], None]
) -> None:
    """Of the project's own cases, most fail for a broken operator."""
    file = read_cases(EXAMPLES)
    results = list(
        run_cases(file.cases, lambda call, inputs: reference_call(call, inputs, **{when: breakage}))
    )
    assert exit_code(results) == 1
    failed = [result for result in results if result.status is CaseStatus.FAIL]
    assert len(failed) >= len(results) - 3
