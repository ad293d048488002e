"""`opferry diff`: what changed from one run to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opferry.cli._common import FAILED, FILE_WIDTH, WRONG, json_option, reports_errors, say

if TYPE_CHECKING:
    from opferry.reports import RunDifference

MOST_LISTED = 20
"""The most cases that are listed of those that did not get worse."""


@click.command()
@click.argument("before", type=click.Path(path_type=Path), metavar="A.jsonl")
@click.argument("after", type=click.Path(path_type=Path), metavar="B.jsonl")
@click.option(
    "--slower",
    type=click.FloatRange(min=1, min_open=True),
    default=1.2,
    show_default=True,
    help="The ratio of two kernel times from which on a case is slower or faster.",
)
@json_option
@reports_errors
def diff(before: Path, after: Path, slower: float, as_json: bool) -> None:
    """Say what changed from one run to another.

    Both are records of runs, the files of JSON lines that validate leaves. Cases are matched by
    name. First comes what the runs do not have in common: case file, settings, server, operator
    package. Then the cases that broke, are missing, were fixed, still do not pass, are new, give
    other bits at the same verdict, or take longer or less time. Times of different machines say
    little about each other. A case that is DISABLED counts as absent, and NOT RUN as no pass.

    \b
    Exit status:
      0  nothing broke
      1  a case broke or is missing
      2  a file is not the record of a run
    """  # noqa: D301 - click reads the escape
    from opferry.reports import ReportError, compare_runs, read_run

    try:
        found = compare_runs(read_run(before), read_run(after), slower=slower)
    except ReportError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error
    if as_json:
        click.echo(json.dumps(_fields(found), indent=2))
    else:
        _print(found, before, after)
    raise SystemExit(FAILED if found.is_worse else 0)


def _fields(found: RunDifference) -> dict[str, object]:
    """Return a difference as JSON can hold it."""
    lists = {
        name: [item if isinstance(item, str) else item._asdict() for item in value]
        for name, value in vars(found).items()
        if isinstance(value, list)
    }
    return {"is_worse": found.is_worse, "both_count": found.both_count, **lists}


def _print(found: RunDifference, before: Path, after: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    console.print(f"{before} to {after}", markup=False, highlight=False, soft_wrap=True)
    if found.settings:
        table = Table(title="what the runs do not have in common", title_justify="left")
        for heading in ("what", "before", "after"):
            table.add_column(heading, overflow="fold")
        for item in found.settings:
            table.add_row(*(escape(text) or "-" for text in item))
        console.print(table)
    table = Table()
    for heading in ("change", "case", "before", "after", "reason"):
        table.add_column(heading, overflow="fold")
    for change, rows in _rows(found).items():
        worse = change in ("broken", "missing")
        for row in rows if worse else rows[:MOST_LISTED]:
            table.add_row(f"[bold red]{change}[/]" if worse else change, *map(escape, row))
        if not worse and len(rows) > MOST_LISTED:
            table.add_row(change, f"and {len(rows) - MOST_LISTED:,} more; --json lists all")
    if table.row_count:
        console.print(table)
    counts = ", ".join(f"{len(rows)} {change}" for change, rows in _rows(found).items() if rows)
    summary = f"{found.both_count} cases in both; {counts or 'no change'}"
    console.print(summary, markup=False, highlight=False, soft_wrap=True)
    if found.other_inputs:
        line = f"{len(found.other_inputs)} cases had other input data: their bits say nothing"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if found.slower or found.faster:
        line = "kernel times are medians; those of different machines say little about each other"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _rows(found: RunDifference) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of the table by the kind of change."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for change in ("broken", "missing", "fixed", "still_failing", "new"):
        verdicts = getattr(found, change)
        rows[change.replace("_", " ")] = [
            (item.name, item.before or "-", item.after or "-", item.reason) for item in verdicts
        ]
    rows["other bits"] = [
        (item.name, item.status, item.status, ", ".join(item.outputs))
        for item in found.changed_bits
    ]
    for change in ("slower", "faster"):
        rows[change] = [
            (
                item.name,
                f"{item.before_us:.1f} µs",
                f"{item.after_us:.1f} µs",
                f"{item.ratio:.2f} x",
            )
            for item in getattr(found, change)
        ]
    return rows
