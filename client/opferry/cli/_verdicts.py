"""The verdicts of a run as a table for people, and what is said below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from opferry.cli._common import FILE_WIDTH, package_line

if TYPE_CHECKING:
    from opferry.validation import CaseFile, CaseResult, RunSettings


def print_verdicts(results: Sequence[CaseResult], found: CaseFile, address: str) -> None:
    """Print the table, a line for each row that did not pass, what ran it, and the counts."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from opferry.validation import TABLE_HEADINGS, count_statuses, table_row

    styles = {"PASS": "green", "FAIL": "bold red", "ERROR": "bold red", "NOT RUN": "yellow"}
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(f"{found.path} on {address}", markup=False, highlight=False, soft_wrap=True)
    table = Table()
    *headings, _ = TABLE_HEADINGS
    for heading in headings:
        number = heading in ("row", "largest error", "kernel µs")
        table.add_column(heading, overflow="fold", justify="right" if number else "left")
    for result in results:
        *cells, _ = map(escape, table_row(result))
        style = styles.get(result.status.value)
        if style is not None:
            cells[2] = f"[{style}]{cells[2]}[/]"
        table.add_row(*cells)
    console.print(table)
    for line in _reasons(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in _ran_by(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(f"{n} {status.value}" for status, n in count_statuses(results).items())
    console.print(f"{counts}; {_judged_by(results[0].settings)}", highlight=False, soft_wrap=True)


def _ran_by(results: Sequence[CaseResult]) -> list[str]:
    """Return a line for each backend and operator package that ran something."""
    lines: dict[str, None] = {}
    for result in results:
        if result.execution is None:
            continue
        package = package_line(result.execution.operator_package)
        line = f"ran on {result.execution.backend}, operator package {package}"
        lines[line] = None
    return list(lines)


def _reasons(results: Sequence[CaseResult]) -> Iterator[str]:
    """Yield a line for each row that did not pass; rows in a row with one reason share it."""
    from itertools import groupby

    silent = ("PASS", "DISABLED")
    told = [result for result in results if result.reason and result.status.value not in silent]
    for (status, reason), group in groupby(
        told, lambda result: (result.status.value, result.reason)
    ):
        rows = list(group)
        if len(rows) == 1:
            yield f"row {rows[0].case.row} {rows[0].case.name}: {status}: {reason}"
        else:
            yield f"rows {rows[0].case.row} to {rows[-1].case.row}: {status}: {reason}"


def _judged_by(settings: RunSettings) -> str:
    edition = f" ({settings.edition} edition)" if settings.standard == "mixed" else ""
    return (
        f"judged by {settings.standard}{edition}, golden mode {settings.golden_mode.value}, "
        f"seed {settings.seed}"
    )
