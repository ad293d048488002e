"""The project's example cases, and the published rows for the operator where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.validation import (
    STANDARDS,
    CaseStatus,
    GoldenMode,
    OutputStatus,
    exit_code,
    read_cases,
    run_cases,
)

FILES = Path(__file__).parents[3] / "examples"
EXAMPLES = FILES / "rotary_cases.csv"
BOTH = (EXAMPLES, FILES / "forward_cases.csv")
FOLDER = os.environ.get("OPFERRY_TTK_DIR", "")


@pytest.mark.parametrize("path", BOTH, ids=lambda path: path.stem)
@pytest.mark.parametrize("standard", STANDARDS)
def test_every_example_passes(
    reference_call: Callable[..., Any], path: Path, standard: str
) -> None:
    """The reference satisfies every example under every standard."""
    results = list(run_cases(read_cases(path).cases, reference_call, standard=standard))
    assert [r.reason for r in results if r.status is not CaseStatus.PASS] == []
    assert exit_code(results) == 0


@pytest.mark.parametrize("path", BOTH, ids=lambda path: path.stem)
def test_examples_pass_against_a_golden_in_float64(
    reference_call: Callable[..., Any], path: Path
) -> None:
    """No example hangs on the order of rounding: `mixed` passes with an unrounded golden too."""
    cases = read_cases(path).cases
    for seed in range(3):
        results = run_cases(cases, reference_call, seed=seed, golden_mode=GoldenMode.PROMOTE)
        assert exit_code(results) == 0


def test_examples_cover_what_the_operator_does() -> None:
    """Dtypes, layouts, templates, broadcasts, heads, optional inputs, views and special values."""
    file = read_cases(EXAMPLES)
    cases = file.cases
    plans = [case.operator.check(case.inputs, case.attributes) for case in cases]
    grads = [case.inputs["grad_query_embed"] for case in cases]
    keys = [case.inputs["grad_key_embed"] for case in cases]
    assert len(cases) >= 14
    assert file.unknown_columns == ()
    assert {spec.dtype for spec in grads} == set(DType)
    layouts = {case.attributes.layout for case in cases}
    assert layouts == {Layout.BSND, Layout.SBND, Layout.TND}
    assert {plan.template for plan in plans} == {"A", "AB", "BAB"}
    for layout in (Layout.BSND, Layout.SBND):
        axis = layout.axes.index("B")
        batches = {
            (case.inputs["cos"].shape[axis] == 1, grad.shape[axis] > 1)
            for case, grad in zip(cases, grads, strict=True)
            if case.attributes.layout == layout
        }
        assert {(True, True), (False, True)} <= batches
    assert {(q.shape[-2] > k.shape[-2]) for q, k in zip(grads, keys, strict=True)} == {True, False}
    assert any(q.shape[-2] < k.shape[-2] for q, k in zip(grads, keys, strict=True))
    assert {"query" in case.inputs for case in cases} == {True, False}
    views = [spec for case in cases for spec in case.inputs.values() if not spec.is_contiguous]
    assert any(spec.strides for spec in views)
    assert any(spec.storage_offset for spec in views)
    assert any(spec.storage_shape for spec in views)
    ranges = [found for case in cases for found in case.ranges.values()]
    assert any(found.is_nan for found in ranges)
    assert any(found.low == -found.high == float("-inf") for found in ranges)
    assert any(found.forced for found in ranges)
    assert {2, 1024} <= {spec.shape[-1] for spec in grads}
    assert max(plan.input_bytes + plan.output_bytes for plan in plans) < 1024 * 1024


def test_the_forwards_examples_cover_what_it_does() -> None:
    """Dtypes, layouts, modes, templates, narrow cos, views, special values, both ends of D."""
    file = read_cases(FILES / "forward_cases.csv")
    cases = file.cases
    plans = [case.operator.check(case.inputs, case.attributes) for case in cases]
    queries = [case.inputs["query"] for case in cases]
    assert file.unknown_columns == ()
    assert {spec.dtype for spec in queries} == set(DType)
    assert {case.attributes.layout for case in cases} == set(Layout)
    assert {case.attributes.rotary_mode for case in cases} == {"half", "interleave", "quarter"}
    assert {plan.template for plan in plans} == {"AB", "BAB", "ABA", "BA"}
    narrow = {
        case.attributes.rotary_mode
        for case, query in zip(cases, queries, strict=True)
        if case.inputs["cos"].shape[-1] < query.shape[-1]
    }
    assert narrow == {"half", "interleave", "quarter"}
    assert any(not query.is_contiguous for query in queries)
    assert {2, 1024} <= {query.shape[-1] for query in queries}
    ranges = [found for case in cases for found in case.ranges.values()]
    assert any(found.is_nan for found in ranges)
    assert any(found.forced for found in ranges)
    assert max(plan.input_bytes + plan.output_bytes for plan in plans) < 1024 * 1024


@pytest.mark.skipif(not FOLDER, reason="OPFERRY_TTK_DIR names no folder of published case files")
@pytest.mark.parametrize(
    "name", ["aclnn_apply_rotary_pos_emb_grad.csv", "e2e_apply_rotary_pos_emb_grad.csv"]
)
def test_published_rows_pass(reference_call: Callable[..., Any], name: str) -> None:
    """Published rows are read as they are and pass; outputs not computed are suppressed."""
    results = list(run_cases(read_cases(Path(FOLDER) / name).cases, reference_call))
    assert exit_code(results) == 0
    for result in results:
        assert [output.status for output in result.outputs] == [
            OutputStatus.PASS,
            OutputStatus.PASS,
            OutputStatus.SUPPRESSED,
            OutputStatus.SUPPRESSED,
        ]
