"""The result file, and the rows of the table that a person reads."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import TracebackType

from opferry.core.execution import Execution
from opferry.validation._locks import cut, open_alone
from opferry.validation.case import Case, CaseFile
from opferry.validation.outcome import CaseResult, CaseStatus, OutputResult, OutputStatus
from opferry.validation.problems import CaseFileError

OUTPUT_FIGURES = (
    "status",
    "share",
    "max_abs_error",
    "mean_rel_error",
    "max_rel_error",
    "mismatch_count",
    "cosine_distance",
    "worst_index",
    "worst_actual",
    "worst_golden",
    "digest",
)
"""What stands in the result file for each output; the column is "grad_query_share" and so on."""

RUN_COLUMNS = (
    *("reason", "standard", "edition", "golden_mode", "seed", "run_count"),
    *("request_id", "worker", "device", "backend", "real_device", "soc_name", "cann_version"),
    *("operator_package", "package_digest", "known_answer", "library_file"),
    *("queue_us", "upload_us", "host_to_device_us", "stage_one_us"),
    *("kernel_us", "kernel_min_us", "kernel_max_us", "device_to_host_us", "download_us"),
    *("upload_bytes", "download_bytes", "input_digests"),
    *("generate_us", "golden_us", "compare_us", "total_us"),
)
"""What stands in the result file for each case, after the outputs.

kernel_us is the median over the runs; total_us the whole case, waiting included. All times are
in microseconds; a cell is empty where there is nothing to say.
"""

Figure = str | int | float | bool
"""What stands in one cell of a result: a word, a count, a measure or a yes and no."""

TABLE_HEADINGS = ("row", "case", "verdict", "outputs", "largest error", "kernel µs", "reason")
"""The headings of the table, one for each cell of `table_row`."""


class ResultWriter:
    """Writes results to a CSV file row by row, so that a run that is killed leaves whole rows.

    The columns are those of the case file, verbatim, then precision_status, the figures of each
    output, and `RUN_COLUMNS`. A case file that is a result itself keeps no old figures.
    """

    def __init__(
        self, path: str | os.PathLike[str], case_file: CaseFile, *, append: bool = False
    ) -> None:
        """Create the file, replacing an old one, and write its header.

        Args:
            path: the file.
            case_file: where the cases come from.
            append: go on with a file that has the same header, if there is one.

        Raises:
            CaseFileError: if it cannot be written, is the case file, or has another header.
        """
        self._path = Path(path)
        operators = {case.operator.name: case.operator for case in case_file.cases}
        outputs = dict.fromkeys(
            output.name for operator in operators.values() for output in operator.outputs
        )
        self._figures = (
            "precision_status",
            *(f"{name}_{figure}" for name in outputs for figure in OUTPUT_FIGURES),
            *RUN_COLUMNS,
        )
        self._inputs = [name for name in case_file.columns if name not in self._figures]
        if self._path.exists() and self._path.samefile(case_file.path):
            raise CaseFileError(path, None, None, "is the case file; give the result another name")
        header = [*self._inputs, *self._figures]
        goes_on = append and self._path.exists() and self._path.stat().st_size > 0
        try:
            if goes_on:
                self._check_header(header)
            self._stream = open_alone(self._path)
            if not goes_on:
                cut(self._stream, 0)
        except OSError as error:
            raise self._failed(error) from error
        self._csv = csv.writer(self._stream, lineterminator="\n")
        if not goes_on:
            self._put(header)

    def write(self, result: CaseResult) -> None:
        """Append a result; it is in the file when this returns.

        Raises:
            CaseFileError: if it cannot be written.
        """
        self.write_figures(result.case, result_figures(result))

    def write_figures(self, case: Case, figures: Mapping[str, Figure]) -> None:
        """Append what is said of a case; it is in the file when this returns.

        Args:
            case: the case.
            figures: what `result_figures` says of it, or a record of that.

        Raises:
            CaseFileError: if it cannot be written.
        """
        cells = [case.columns[name] for name in self._inputs]
        self._put([*cells, *(_cell(figures.get(name)) for name in self._figures)])

    def close(self) -> None:
        """Close the file; again is harmless."""
        self._stream.close()

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_header(self, header: list[str]) -> None:
        with self._path.open(encoding="utf-8-sig", newline="") as stream:
            found = next(csv.reader(stream), [])
        if found != header:
            message = (
                "has other columns than these results, so they cannot be appended to it; give "
                "another file, or -o to replace it"
            )
            raise CaseFileError(self._path, 1, None, message)

    def _put(self, cells: list[str]) -> None:
        try:
            # csv of Python 3.10 writes no NUL, and reads none
            self._csv.writerow([cell.replace("\0", "\ufffd") for cell in cells])
            self._stream.flush()
        except OSError as error:
            # what could not be written would be tried again, and fail again, at the close
            with suppress(OSError):
                self._stream.close()
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CaseFileError:
        return CaseFileError(self._path, None, None, f"cannot be written: {error.strerror}")


def is_result_column(name: str) -> bool:
    """Return whether a column is one that a result file has beside its input's.

    Args:
        name: the column.
    """
    return name in ("precision_status", *RUN_COLUMNS) or any(
        name.endswith(f"_{figure}") for figure in OUTPUT_FIGURES
    )


def result_figures(result: CaseResult) -> dict[str, Figure]:
    """Return what is said of a case, by column of the result file, the input columns left out.

    Args:
        result: what came of the case.
    """
    figures: dict[str, Figure] = {"precision_status": result.status.value}
    for output in result.outputs:
        for name, figure in _output_figures(output).items():
            figures[f"{output.name}_{name}"] = figure
    settings = result.settings
    figures |= {
        "reason": _reason(result),
        "standard": settings.standard,
        "edition": settings.edition if settings.standard in ("mixed", "cross_check") else "",
        "golden_mode": settings.golden_mode.value,
        "seed": settings.seed,
        "request_id": result.request_id,
    }
    if result.execution is not None:
        figures |= _execution_figures(result.execution)
        figures |= {
            f"{name}_us": _us(getattr(result.times, f"{name}_ns"))
            for name in ("generate", "golden", "compare", "total")
        }
    if result.input_digests:
        digests = (f"{name}={digest.hex()}" for name, digest in result.input_digests.items())
        figures["input_digests"] = " ".join(digests)
    return figures


def _reason(result: CaseResult) -> str:
    """Return the reason in one line, without the request id, which has a column of its own."""
    text = " ".join(result.reason.split())
    if result.request_id:
        text = text.replace(f", request {result.request_id}]", "]")
        text = text.replace(f" [request {result.request_id}]", "")
    return text


def _output_figures(output: OutputResult) -> dict[str, Figure]:
    found = output.comparison
    if found is None:
        return {"status": output.status.value, "digest": output.digest.hex()}
    figures: dict[str, Figure] = {
        "status": output.status.value,
        "share": found.share,
        "max_abs_error": found.max_abs_error,
        "mean_rel_error": found.mean_rel_error,
        "max_rel_error": found.max_rel_error,
        "mismatch_count": found.mismatch_count,
        "digest": output.digest.hex(),
    }
    if found.cosine_distance is not None:
        figures["cosine_distance"] = found.cosine_distance
    if found.worst is not None:
        figures |= {
            "worst_index": str(found.worst.index),
            "worst_actual": found.worst.actual,
            "worst_golden": found.worst.golden,
        }
    return figures


def _execution_figures(execution: Execution) -> dict[str, Figure]:
    timings = execution.timings
    figures: dict[str, Figure] = {
        "run_count": len(timings.kernel_ns),
        "worker": execution.worker,
        "device": execution.device,
        "backend": execution.backend,
        "real_device": execution.real_device,
        "soc_name": execution.soc_name,
        "cann_version": execution.cann_version,
        "operator_package": execution.operator_package.name,
        "package_digest": execution.operator_package.digest,
        "known_answer": execution.operator_package.known_answer,
        "library_file": execution.operator_package.library_file,
        "queue_us": _us(timings.queue_ns),
        "upload_us": _us(timings.upload_ns),
        "host_to_device_us": _us(timings.host_to_device_ns),
        "stage_one_us": _us(timings.stage_one_ns),
        "device_to_host_us": _us(timings.device_to_host_ns),
        "download_us": _us(timings.download_ns),
        "upload_bytes": execution.upload_bytes,
        "download_bytes": execution.download_bytes,
    }
    if timings.kernel_ns:
        figures |= {
            "kernel_us": _us(median(timings.kernel_ns)),
            "kernel_min_us": _us(min(timings.kernel_ns)),
            "kernel_max_us": _us(max(timings.kernel_ns)),
        }
    return figures


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 3)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.9g}" if isinstance(figure, float) else str(figure)


def table_row(case: Case, figures: Mapping[str, Figure]) -> tuple[str, ...]:
    """Return a case as a row of plain strings under `TABLE_HEADINGS`.

    Args:
        case: the case.
        figures: what `result_figures` says of it.
    """
    by_status: dict[str, list[str]] = {}
    errors: list[tuple[float, str]] = []
    for output in case.operator.outputs:
        status = figures.get(f"{output.name}_status")
        if status:
            by_status.setdefault(str(status), []).append(output.short_name)
        error = figures.get(f"{output.name}_max_abs_error")
        if error not in (None, ""):
            errors.append((float(error), output.short_name))
    # a status is named where it is not the expected one
    outputs = ", ".join(
        " ".join(names if status == OutputStatus.PASS.value else [status, *names])
        for status, names in by_status.items()
    )
    largest = max(errors, default=(0.0, ""), key=lambda error: error[0])
    kernel_us = figures.get("kernel_us")
    return (
        str(case.row),
        case.name,
        str(figures["precision_status"]),
        outputs,
        ("0" if largest[0] == 0 else f"{largest[0]:.3g} {largest[1]}") if errors else "",
        "" if kernel_us in (None, "") else f"{float(kernel_us):.1f}",
        str(figures["reason"]),
    )


def count_statuses(results: Iterable[CaseResult]) -> Mapping[CaseStatus, int]:
    """Return how many cases have each verdict, in the verdicts' order; none that is 0.

    Args:
        results: of a run or of a part of it.
    """
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in CaseStatus if counts[status]}
