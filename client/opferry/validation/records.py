"""The record of a run: a file of JSON lines, one object in each, in UTF-8.

The first line is a `RunRecord`; each case is a `CaseRecord`, in any order; of several for one row
the last one counts. A run that was resumed has another `RunRecord` where it went on. Numbers that
JSON has no word for are the strings "nan", "inf" and "-inf". Readers ignore keys and kinds that
they do not know.
"""

from __future__ import annotations

from typing import Any, TypedDict

FORMAT = "opferry-results-1"
"""The format's name and version; another version is not read."""

Number = float | int | str
"""A number, or "nan", "inf" or "-inf"."""


class RunRecord(TypedDict):
    """What all cases of a run have in common."""

    kind: str
    """"run"."""
    format: str
    """`FORMAT`."""
    opferry_version: str
    """The client's version."""
    started: str
    """When it began, ISO 8601 in UTC."""
    case_file: str
    """The case file, as it was named."""
    case_file_sha256: str
    """The digest of its bytes, in hexadecimal."""
    row_count: int
    """The rows that were chosen."""
    reproduce: list[str]
    """The words of a command that runs them again; `-t NAME` behind it runs one alone."""
    target: str
    """The server's address."""
    server: dict[str, Any]
    """opferry_version, backend, real_device, reference_kernel, versions (by name), and workers
    (each with name and device)."""
    settings: dict[str, Any]
    """seed, standard, edition, golden_mode, repeat, warmup, exclusive, deterministic, check,
    operator_package, inputs (server or client)."""


class InputRecord(TypedDict):
    """One input of a case."""

    name: str
    """The operator's parameter."""
    dtype: str
    """float32, float16 or bfloat16."""
    shape: list[int]
    """The extents of the view."""
    strides: list[int] | None
    """The steps of the view in elements; null: contiguous."""
    storage_offset: int
    """The storage's element at which the view begins."""
    storage_shape: list[int] | None
    """The extents of the storage; null: as shape."""
    range: list[Number]
    """The interval's bounds, then the values that occur for certain; empty for data from a file."""
    distribution: str
    """uniform or normal; empty for data from a file."""
    digest: str
    """The XXH3 64-bit digest of its data, in hexadecimal; empty where nothing was made."""


class HistogramRecord(TypedDict):
    """A `Histogram`."""

    exact_count: int
    """The elements without an error."""
    counts: dict[str, int]
    """By exponent, as text."""


class OutputRecord(TypedDict):
    """One output of a case."""

    name: str
    """The output's name, such as grad_query."""
    short_name: str
    """The name by which users know it, such as dq."""
    status: str
    """A value of `OutputStatus`."""
    reason: str
    """Why it is not a PASS."""
    dtype: str
    """Its dtype."""
    shape: list[int]
    """Its extents."""
    digest: str
    """The XXH3 64-bit digest of its data, every NaN the canonical one; empty if none came."""
    golden_digest: str
    """Likewise of the golden."""
    thresholds: dict[str, Number]
    """The standard's thresholds, by name."""
    figures: dict[str, Number]
    """element_count, passing_count, share, max_abs_error, mean_rel_error, max_rel_error,
    mismatch_count; empty if nothing was compared."""
    worst: list[dict[str, Any]]
    """The worst elements, worst first: index, actual, golden, abs_error, ulps (or null)."""
    relative_errors: HistogramRecord
    """See `Findings`."""
    ulp_distances: HistogramRecord
    """See `Findings`."""
    statistics: dict[str, Number]
    """See `ErrorStatistics`."""
    heat_map: dict[str, list[int]] | None
    """extents, bins and failing of a `HeatMap`."""
    failing_slice: dict[str, list[Any]] | None
    """index, actual and golden of a `FailingSlice`."""


class CaseRecord(TypedDict):
    """What came of one case."""

    kind: str
    """"case"."""
    row: int
    """The row as a spreadsheet counts it."""
    name: str
    """testcase_name."""
    operator: str
    """The operator's name in Python."""
    columns: dict[str, str]
    """The row's cells by column, as they stand in the case file."""
    groups: dict[str, str]
    """What summaries group by: dtype, layout, template; "" where a row has none."""
    attributes: dict[str, Any]
    """The operator's attributes by their Python names."""
    inputs: list[InputRecord]
    """The inputs in the operator's order."""
    figures: dict[str, Any]
    """What the result file says behind the row's own cells, by column: precision_status, reason,
    figures of the outputs, request_id, worker, times and so on; see `results`. Numbers are rounded
    as there."""
    outputs: list[OutputRecord]
    """The outputs in the operator's order; none where nothing was executed."""
