"""The verdicts of a run as a table for people, and what is said below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opferry.cli._common import FILE_WIDTH

if TYPE_CHECKING:
    from opferry.cli._suite import Outcome
    from opferry.validation import Case, CaseFile, RunSettings

STYLES = {"PASS": "green", "FAIL": "bold red", "ERROR": "bold red", "NOT RUN": "yellow"}

SILENT = ("PASS", "DISABLED", "EXECUTED")
"""The verdicts that need no reason."""


def print_verdicts(outcome: Outcome, found: CaseFile, address: str) -> None:
    """Print the table, a line for each row that did not pass, what ran it, and the counts."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from opferry.validation import TABLE_HEADINGS, CaseStatus, table_row

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(f"{found.path} on {address}", markup=False, highlight=False, soft_wrap=True)
    if outcome.told:
        table = Table()
        *headings, _ = TABLE_HEADINGS
        for heading in headings:
            number = heading in ("row", "largest error", "kernel µs")
            table.add_column(heading, overflow="fold", justify="right" if number else "left")
        for case, figures in outcome.told:
            *cells, _ = map(escape, table_row(case, figures))
            style = STYLES.get(cells[2])
            if style is not None:
                cells[2] = f"[{style}]{cells[2]}[/]"
            table.add_row(*cells)
        console.print(table)
    for line in (*_reasons(outcome), *outcome.remarks, *_ran_by(outcome)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    counts = ", ".join(
        f"{outcome.counts[status]} {status.value}"
        for status in CaseStatus
        if outcome.counts[status]
    )
    console.print(f"{counts}; {_judged_by(outcome.settings)}", highlight=False, soft_wrap=True)


def _ran_by(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each backend and operator package that ran something."""
    for backend, package, library_file, digest, known_answer in outcome.ran_by:
        line = f"ran on {backend}, operator package {package}"
        if digest:
            line += f", {library_file}, SHA-256 {digest}"
        if known_answer == "FAILED":
            line += "; its known answer was wrong"
        yield line


def _reasons(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each row that did not pass; rows that follow each other may share one."""
    groups: list[tuple[str, str, list[Case]]] = []
    last = 0
    for case, figures in outcome.told:
        status, reason = str(figures["precision_status"]), str(figures["reason"])
        if not reason or status in SILENT:
            continue
        if groups and groups[-1][:2] == (status, reason) and case.row == last + 1:
            groups[-1][2].append(case)
        else:
            groups.append((status, reason, [case]))
        last = case.row
    for status, reason, rows in groups:
        if len(rows) == 1:
            yield f"row {rows[0].row} {rows[0].name}: {status}: {reason}"
        else:
            yield f"rows {rows[0].row} to {rows[-1].row}: {status}: {reason}"
    if outcome.untold:
        yield f"{outcome.untold} more rows did not pass; the result file has them (-o)"


def _judged_by(settings: RunSettings) -> str:
    edition = ""
    if settings.golden_mode.value == "Disable":
        return f"nothing was compared, seed {settings.seed}"
    if settings.standard == "mixed":
        edition = f" ({settings.edition} edition)"
    elif settings.standard == "cross_check":
        edition = f" (level {settings.edition})"
    return (
        f"judged by {settings.standard}{edition}, golden mode {settings.golden_mode.value}, "
        f"seed {settings.seed}"
    )
