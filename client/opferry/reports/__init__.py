"""Reports on recorded runs: a page for people, JUnit XML for build servers, and what changed.

    run = read_run("results.jsonl")
    write_html("report.html", run)
    write_junit("junit.xml", run)
    compare_runs(read_run("yesterday.jsonl"), run)

Only the page needs the extra "report".
"""

from __future__ import annotations

from opferry.reports.diff import (
    FLOOR_US,
    SLOWER,
    ChangedBits,
    Difference,
    KernelTimes,
    RunDifference,
    Verdicts,
    compare_runs,
)
from opferry.reports.html import check_page_can_be_made, write_html
from opferry.reports.junit import write_junit
from opferry.reports.problems import RecordError, ReportError
from opferry.reports.reading import RecordedCase, RecordedRun, read_run

__all__ = [
    "FLOOR_US",
    "SLOWER",
    "ChangedBits",
    "Difference",
    "KernelTimes",
    "RecordError",
    "RecordedCase",
    "RecordedRun",
    "ReportError",
    "RunDifference",
    "Verdicts",
    "check_page_can_be_made",
    "compare_runs",
    "read_run",
    "write_html",
    "write_junit",
]
