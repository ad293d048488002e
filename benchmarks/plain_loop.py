"""What judging a suite costs without any of opferry's processes: one loop over the rows.

Inputs are made by the generator in numpy, operator and golden are the formulas on whole numpy
arrays, computed twice, and the verdict is that of the same standard. Nothing else is told of a
case, and nothing is compiled.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.whole import whole
from opferry.core.execution import ExecutionOptions
from opferry.core.tensors import view_array
from opferry.operators.base import Plan
from opferry.validation import Case, compare, read_cases
from opferry.validation._making import data_of
from opferry.validation.outcome import GoldenMode, RunSettings

Item = TypeVar("Item")

SETTINGS = RunSettings(0, ExecutionOptions(), "mixed", "current", GoldenMode.ENABLE, "")
"""What `Client.validate_cases` takes if it is told nothing."""


def spread(cases: Sequence[Item], count: int | None) -> list[Item]:
    """Return *count* of the cases, spread evenly; all of them if there are no more, or for None."""
    wanted = len(cases) if count is None else min(count, len(cases))
    return [cases[position * len(cases) // wanted] for position in range(wanted)]


def run_plain_loop(case_file: Path, sample: int | None) -> dict[str, float]:
    """Judge rows in a loop, in a process of its own, and return seconds: wall, and of each step.

    Args:
        case_file: a generated suite.
        sample: how many rows, spread evenly; None: all.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_loop, case_file, sample).result()


def _loop(case_file: Path, sample: int | None) -> dict[str, float]:
    cases = spread(read_cases(case_file).cases, sample)
    spent: Counter[str] = Counter()
    started_ns = time.perf_counter_ns()
    for case in cases:
        _judge(case, spent)
    wall_ns = time.perf_counter_ns() - started_ns
    return {"seconds": wall_ns / 1e9, **{name: ns / 1e9 for name, ns in spent.items()}}


def _judge(case: Case, spent: Counter[str]) -> None:
    marks_ns = [time.perf_counter_ns()]
    inputs = {}
    for name in case.inputs:
        made = data_of(case, SETTINGS, name)
        inputs[name] = view_array(made.spec, made.data)
    marks_ns.append(time.perf_counter_ns())
    plan = case.operator.check(case.inputs, case.attributes)
    outputs = reference(inputs, plan)
    marks_ns.append(time.perf_counter_ns())
    goldens = reference(inputs, plan)
    marks_ns.append(time.perf_counter_ns())
    for name in case.outputs:
        if name in outputs:
            verdict = compare(outputs[name], goldens[name], dtype=plan.outputs[name].dtype)
            assert verdict.passed, (case.name, name)
    marks_ns.append(time.perf_counter_ns())
    for step, start_ns, end_ns in zip(
        ("generate", "execute", "golden", "compare"), marks_ns[:-1], marks_ns[1:], strict=True
    ):
        spent[step] += end_ns - start_ns


def reference(inputs: Mapping[str, NDArray[Any]], plan: Plan) -> dict[str, NDArray[Any]]:
    """Return the operator's results by the formulas on whole arrays, in float32 arithmetic.

    Args:
        inputs: by name, in the shapes of the plan.
        plan: what the operator's contract says of the call.
    """
    dtype = plan.inputs["cos"].dtype.numpy
    # infinities and NaN are ordinary data here
    with np.errstate(all="ignore"):
        results = whole(
            inputs,
            np.concatenate,
            lambda array: array.astype(np.float32, copy=False),
            lambda array: array.astype(dtype, copy=False),
            lambda array: array.sum(axis=plan.broadcast_axes, keepdims=True),
        )
    return dict(zip(plan.outputs, results, strict=True))
