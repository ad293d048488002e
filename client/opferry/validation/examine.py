"""The verdict on an output together with where and how it differs from its golden."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation._heat_map import HeatMapBins
from opferry.validation._histograms import ErrorHistograms
from opferry.validation._statistics import ErrorSums
from opferry.validation._verdict import Pair, check_arrays, judge
from opferry.validation._worst import WorstElements
from opferry.validation.comparison import Comparison
from opferry.validation.findings import FailingSlice, Findings, WorstElement
from opferry.validation.rounding import round_array, ulp_distances
from opferry.validation.standards import EDITIONS, check_standard, check_worst_count

MAX_SLICE = 1024
"""The most values of a failing slice; of a longer axis it is one of the pieces of this length."""

Array = NDArray[Any]


def examine(
    actual: Array,
    golden: Array,
    standard: str = "mixed",
    *,
    dtype: DType,
    edition: str = EDITIONS[0],
    rtol: float | None = None,
    ptol: float | None = None,
    atol: float | None = None,
    worst_count: int = 8,
    with_slice: bool = True,
) -> tuple[Comparison, Findings]:
    """Judge an output as `compare` does, and gather findings in the same pass.

    Beside the arrays it takes a few MiB, whatever their size. All figures follow from the values
    alone, to the last bit.

    Args:
        actual: the output; its dtype is *dtype*, any shape with at least one element.
        golden: the same shape; of *dtype*, or float64 and unrounded.
        standard: one of `STANDARDS`.
        dtype: the output's dtype, which chooses the thresholds.
        edition: one of `EDITIONS`, for `mixed`.
        rtol: for `close` in place of the default.
        ptol: the share of elements that may miss, likewise.
        atol: likewise.
        worst_count: how many of the worst elements to name, 0 or more.
        with_slice: whether to copy the values around the first element that does not pass.

    Raises:
        Problem: ATTRIBUTE_INVALID for a word or number that is not taken; SHAPE_MISMATCH or
            DTYPE_NOT_ALLOWED if the arrays do not belong together.
    """
    check_standard(standard, edition, rtol=rtol, ptol=ptol, atol=atol)
    check_worst_count(worst_count)
    check_arrays(actual, golden, dtype)
    worst, heat_map = WorstElements(worst_count), HeatMapBins(actual.shape)
    histograms, statistics = ErrorHistograms(dtype), ErrorSums(dtype)
    pair = Pair(actual, golden, dtype, (worst, heat_map, histograms, statistics))
    comparison = judge(pair, standard, edition=edition, rtol=rtol, ptol=ptol, atol=atol)
    relative_errors, distances = histograms.results()
    return comparison, Findings(
        worst=tuple(_worst_element(pair, position) for position in worst.positions()),
        relative_errors=relative_errors,
        ulp_distances=distances,
        statistics=statistics.result(),
        heat_map=heat_map.result(),
        failing_slice=_failing_slice(pair, comparison) if with_slice else None,
    )


def _worst_element(pair: Pair, position: int) -> WorstElement:
    element = pair.element(position)
    if element.actual != element.actual or element.golden != element.golden:
        return WorstElement(element, None)
    # of one element each, whatever the shape
    actual = pair.actual[element.index].reshape(1)
    golden = pair.golden[element.index].reshape(1)
    if golden.dtype != actual.dtype:
        golden = round_array(golden, pair.dtype)
    return WorstElement(element, int(ulp_distances(actual, golden)[0]))


def _failing_slice(pair: Pair, comparison: Comparison) -> FailingSlice | None:
    failing = comparison.first_failing
    if failing is None or not failing.index:
        return None
    *before, place = failing.index
    first = place // MAX_SLICE * MAX_SLICE
    actual, golden = (
        side[tuple(before)][first : first + MAX_SLICE] for side in (pair.actual, pair.golden)
    )
    return FailingSlice(
        index=(*before, first),
        actual=tuple(float(value) for value in actual),
        golden=tuple(float(value) for value in golden),
    )
