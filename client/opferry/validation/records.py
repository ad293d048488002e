"""The record of a run: a file of JSON lines, one object in each, in UTF-8.

The first line is a `RunRecord`; each case is a `CaseRecord`, in any order; of several for one row
the last one counts. A run that was resumed has another `RunRecord` where it went on. Numbers that
JSON has no word for are the strings "nan", "inf" and "-inf". Readers ignore keys and kinds that
they do not know.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, TypedDict

from opferry.core.layouts import Layout
from opferry.core.problems import Problem
from opferry.validation.case import Case, CaseFile
from opferry.validation.findings import Findings, Histogram
from opferry.validation.outcome import CaseResult, OutputResult, RunSettings
from opferry.validation.problems import CaseFileError
from opferry.validation.recipes import Recipe
from opferry.validation.results import result_figures

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
    """The words of a command that, with `-t NAME` behind it, runs one of them alone."""
    command: list[str]
    """The words of a command that runs them all again."""
    target: str
    """The server's address; "embedded" for one that was started for the run."""
    server: dict[str, Any]
    """opferry_version, backend, real_device, reference_kernel, versions (by name), and workers
    (each with name and device)."""
    settings: dict[str, Any]
    """seed, standard, edition, golden_mode, repeat, warmup, exclusive, deterministic, check,
    operator_package, inputs (server or client), batch_consistency; and sheet, distribution,
    against_target and against_package, null where they were not given."""


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


def run_record(
    case_file: CaseFile,
    row_count: int,
    settings: RunSettings,
    *,
    target: str,
    server: Mapping[str, Any],
    reproduce: Sequence[str],
    command: Sequence[str],
    also: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Return the record of a run that begins now.

    Args:
        case_file: the case file.
        row_count: the rows that were chosen.
        settings: the settings of the run.
        target: the server's address.
        server: what it is, as `RunRecord.server` says.
        reproduce: the words of a command that runs one of the rows, with -t behind it.
        command: the words of a command that runs all of them again.
        also: what else decides over the verdicts, by name.

    Raises:
        CaseFileError: if the case file cannot be read any more.
    """
    try:
        digest = hashlib.sha256(case_file.path.read_bytes()).hexdigest()
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
        raise CaseFileError(case_file.path, None, None, text) from error
    return RunRecord(
        kind="run",
        format=FORMAT,
        opferry_version=version("opferry"),
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        case_file=str(case_file.path),
        case_file_sha256=digest,
        row_count=row_count,
        reproduce=list(reproduce),
        command=list(command),
        target=target,
        server=dict(server),
        settings={**settings_record(settings), **(also or {})},
    )


def settings_record(settings: RunSettings) -> dict[str, Any]:
    """Return the settings of a run, all that decides over its verdicts, as plain values."""
    options = settings.options
    return {
        "seed": settings.seed,
        "standard": settings.standard,
        "edition": settings.edition if settings.standard in ("mixed", "cross_check") else "",
        "golden_mode": settings.golden_mode.value,
        "repeat": options.repeat,
        "warmup": options.warmup,
        "exclusive": options.exclusive,
        "deterministic": options.deterministic,
        "check": options.check,
        "operator_package": settings.operator_package,
        "inputs": settings.inputs.value,
        "batch_consistency": settings.batch_consistency,
    }


def case_record(result: CaseResult) -> CaseRecord:
    """Return the record of what came of a case."""
    case = result.case
    return CaseRecord(
        kind="case",
        row=case.row,
        name=case.name,
        operator=case.operator.python_name,
        columns=dict(case.columns),
        groups=_groups(case),
        attributes={} if case.attributes is None else dict(vars(case.attributes)),
        inputs=[_input_record(result, name) for name in case.inputs],
        figures={name: _number(value) for name, value in result_figures(result).items()},
        outputs=[_output_record(result, output) for output in result.outputs],
    )


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record as its line, the line's end included."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def _groups(case: Case) -> dict[str, str]:
    template = ""
    with suppress(Problem):
        template = case.operator.check(case.inputs, case.attributes).template if case.inputs else ""
    first = next(iter(case.inputs.values()), None)
    return {
        "dtype": "" if first is None else first.dtype.value,
        "layout": "" if case.attributes is None else _layout(case.attributes.layout),
        "template": template,
    }


def _layout(number: int) -> str:
    try:
        return Layout(number).name
    except ValueError:
        return str(number)


def _input_record(result: CaseResult, name: str) -> InputRecord:
    case, spec = result.case, result.case.inputs[name]
    values, distribution = case.ranges.get(name), ""
    given = case.given.get(name)
    if isinstance(given, Recipe):
        values, distribution = given.values, given.distribution.value
    elif given is not None or name in case.input_files:
        values = None
    elif values is not None:
        distribution = "normal" if case.normal_distribution else "uniform"
    return InputRecord(
        name=name,
        dtype=spec.dtype.value,
        shape=list(spec.shape),
        strides=None if spec.strides is None else list(spec.strides),
        storage_offset=spec.storage_offset,
        storage_shape=None if spec.storage_shape is None else list(spec.storage_shape),
        range=[]
        if values is None
        else [_number(value) for value in (values.low, values.high, *values.forced)],
        distribution=distribution,
        digest=result.input_digests.get(name, b"").hex(),
    )


def _output_record(result: CaseResult, output: OutputResult) -> OutputRecord:
    declared = next(item for item in result.case.operator.outputs if item.name == output.name)
    like = result.case.inputs.get(declared.like)
    comparison, findings = output.comparison, output.findings or Findings()
    figures = (
        {}
        if comparison is None
        else {
            "element_count": comparison.element_count,
            "passing_count": comparison.passing_count,
            "share": comparison.share,
            "max_abs_error": comparison.max_abs_error,
            "mean_rel_error": comparison.mean_rel_error,
            "max_rel_error": comparison.max_rel_error,
            "mismatch_count": comparison.mismatch_count,
        }
    )
    if comparison is not None and comparison.cosine_distance is not None:
        figures["cosine_distance"] = comparison.cosine_distance
    heat_map, failing = findings.heat_map, findings.failing_slice
    return OutputRecord(
        name=output.name,
        short_name=output.short_name,
        status=output.status.value,
        reason=output.reason,
        dtype="" if like is None else like.dtype.value,
        shape=[] if like is None else list(like.shape),
        digest=output.digest.hex(),
        golden_digest=output.golden_digest.hex(),
        thresholds={}
        if comparison is None
        else {name: _number(value) for name, value in comparison.thresholds.items()},
        figures={name: _number(value) for name, value in figures.items()},
        worst=[
            {
                "index": list(worst.element.index),
                "actual": _number(worst.element.actual),
                "golden": _number(worst.element.golden),
                "abs_error": _number(worst.element.abs_error),
                "ulps": worst.ulps,
            }
            for worst in findings.worst
        ],
        relative_errors=_histogram(findings.relative_errors),
        ulp_distances=_histogram(findings.ulp_distances),
        statistics={name: _number(value) for name, value in vars(findings.statistics).items()},
        heat_map=None
        if heat_map is None
        else {name: list(value) for name, value in vars(heat_map).items()},
        failing_slice=None
        if failing is None
        else {
            "index": list(failing.index),
            "actual": [_number(value) for value in failing.actual],
            "golden": [_number(value) for value in failing.golden],
        },
    )


def _histogram(histogram: Histogram) -> HistogramRecord:
    counts = {str(exponent): count for exponent, count in histogram.counts.items()}
    return HistogramRecord(exact_count=histogram.exact_count, counts=counts)


def _number(value: Any) -> Any:
    """Return a value that JSON has a word for."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
