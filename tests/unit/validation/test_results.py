"""The result file and the table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry.errors import TransportError
from opferry.validation import (
    OUTPUT_FIGURES,
    RUN_COLUMNS,
    TABLE_HEADINGS,
    CaseFileError,
    CaseStatus,
    ResultWriter,
    count_statuses,
    read_cases,
    result_figures,
    run_cases,
    table_row,
)

OUTPUTS = ["grad_query", "grad_key", "grad_cos", "grad_sin"]


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a result file by column."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, strict=True))


@pytest.fixture
def results(
    make_file: Any, reference_call: Callable[..., Any], without_optional: dict[str, str]
) -> Any:
    """A file with one row of each verdict, and its results."""
    file = make_file(
        {"remark": 'a "quoted", remark\nof two lines', "our_ticket": "T-1"},
        {**without_optional},
        {"attributes": "{'layout': 3}"},
        {"is_enabled": "False"},
        {},
        {},
    )

    def spoil(outputs: dict[str, Any]) -> None:
        outputs["grad_key"][1, 2, 1, 7] = np.nan
        outputs["grad_cos"] += 1

    def execute(call: Any, inputs: Any) -> Any:
        if call.attributes.layout == 1 and "query" not in call.inputs:
            return reference_call(call, inputs, None, lambda outputs: outputs.pop("grad_key"))
        if calls.append(1) or len(calls) == 3:
            return reference_call(call, inputs, None, spoil)
        if len(calls) == 4:
            raise TransportError("host:1: UNAVAILABLE:\n socket closed")
        return reference_call(call, inputs)

    calls: list[int] = []
    return file, list(run_cases(file.cases, execute, seed=5, repeat=3))


def test_columns_and_cells(results: Any, tmp_path: Path) -> None:
    """The input columns come first and verbatim, then verdict, figures, reason and execution."""
    file, found = results
    path = tmp_path / "results.csv"
    with ResultWriter(path, file) as writer:
        for result in found:
            writer.write(result)
    written = rows(path)
    figures = [f"{name}_{figure}" for name in OUTPUTS for figure in OUTPUT_FIGURES]
    assert list(written[0]) == [*file.columns, "precision_status", *figures, *RUN_COLUMNS]
    for row, case in zip(written, file.cases, strict=True):
        assert {name: row[name] for name in file.columns} == case.columns
    assert [row["precision_status"] for row in written] == [
        "PASS",
        "FAIL",
        "ERROR",
        "DISABLED",
        "FAIL",
        "NOT RUN",
    ]
    first, missing, error, disabled, failed, lost = written
    assert first["grad_query_share"] == "1"
    assert first["grad_query_worst_index"] == ""
    assert (first["kernel_us"], first["kernel_min_us"], first["kernel_max_us"]) == (
        "2",
        "1",
        "3",
    )
    assert (first["run_count"], first["seed"], first["real_device"]) == ("3", "5", "False")
    assert (first["request_id"], first["worker"], first["device"]) == (
        "request-1",
        "worker-0",
        "cpu:0",
    )
    assert (first["standard"], first["edition"], first["golden_mode"]) == (
        "mixed",
        "current",
        "Enable",
    )
    assert (missing["grad_key_status"], missing["grad_cos_status"]) == ("MISSING", "SUPPRESSED")
    assert missing["grad_key_share"] == ""
    assert "layout 3 (BNSD)" in error["reason"]
    assert error["worker"] == error["grad_query_status"] == ""
    assert disabled["reason"] == "is_enabled is False"
    assert failed["grad_key_mismatch_count"] == "1"
    assert failed["grad_cos_worst_index"].startswith("(")
    assert "first at [1, 2, 1, 7]: got nan" in failed["reason"]
    assert "\n" not in lost["reason"]
    assert "socket closed" in lost["reason"]


def test_what_a_csv_cannot_hold(results: Any, tmp_path: Path) -> None:
    """A NUL or half a surrogate pair in a server's text costs neither the row nor the file."""
    file, (first, *_) = results
    path = tmp_path / "results.csv"
    with ResultWriter(path, file) as writer:
        writer.write(replace(first, reason='a\0b\udc80,"c"'))
    (row,) = rows(path)
    assert row["reason"] == 'a\ufffdb?,"c"'


def test_each_row_is_there_as_soon_as_it_is_written(results: Any, tmp_path: Path) -> None:
    """A run that is killed leaves every row that was written, whole."""
    file, found = results
    path = tmp_path / "results.csv"
    writer = ResultWriter(path, file)
    assert rows(path) == []
    for count, result in enumerate(found, 1):
        writer.write(result)
        assert len(rows(path)) == count
    writer.close()
    writer.close()


def test_a_result_file_is_a_case_file(
    results: Any, reference_call: Callable[..., Any], tmp_path: Path
) -> None:
    """A result can be run again; the new figures take the place of the old ones."""
    file, found = results
    once, twice = tmp_path / "once.csv", tmp_path / "twice.csv"
    with ResultWriter(once, file) as writer:
        for result in found:
            writer.write(result)
    again = read_cases(once)
    assert [case.name for case in again.cases] == [case.name for case in file.cases]
    with ResultWriter(twice, again) as writer:
        for result in run_cases(again.cases, reference_call):
            writer.write(result)
    assert list(rows(twice)[0]) == list(rows(once)[0])
    assert rows(twice)[4]["precision_status"] == "PASS"


def test_files_that_cannot_be_written(results: Any, tmp_path: Path) -> None:
    """The case file itself is never overwritten; a folder that is missing is named."""
    file, _ = results
    before = file.path.read_bytes()
    with pytest.raises(CaseFileError, match="is the case file"):
        ResultWriter(file.path, file)
    assert file.path.read_bytes() == before
    with pytest.raises(CaseFileError, match="cannot be written: No such file"):
        ResultWriter(tmp_path / "none" / "results.csv", file)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_said(results: Any) -> None:
    """A result that does not reach the file is an error, not a silence."""
    file, _ = results
    with pytest.raises(CaseFileError, match="cannot be written: No space left"):
        ResultWriter("/dev/full", file)


def test_table_rows(results: Any) -> None:
    """A row of the table has one cell for each heading and says what a person looks for."""
    _, found = results
    table = [table_row(result.case, result_figures(result)) for result in found]
    assert {len(cells) for cells in table} == {len(TABLE_HEADINGS)}
    assert table[0] == ("2", "case 0", "PASS", "dq dk dcos dsin", "0", "2.0", "")
    assert table[1][3] == "dq, MISSING dk, SUPPRESSED dcos dsin"
    assert table[4][3] == "dq dsin, FAIL dk dcos"
    assert table[4][4] == "1 dcos"
    assert table[5][2:6] == ("NOT RUN", "", "", "")
    assert all("\n" not in cell for cells in table for cell in cells)


def test_counts(results: Any) -> None:
    """Each verdict that occurs is counted."""
    _, found = results
    assert count_statuses(found) == {
        CaseStatus.PASS: 1,
        CaseStatus.FAIL: 2,
        CaseStatus.ERROR: 1,
        CaseStatus.NOT_RUN: 1,
        CaseStatus.DISABLED: 1,
    }
