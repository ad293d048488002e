"""`opferry report`: the record of a run as a page for people and as JUnit XML."""

from __future__ import annotations

from pathlib import Path

import click

from opferry.cli._common import WRONG, reports_errors, say


@click.command()
@click.argument("record", type=click.Path(path_type=Path), metavar="RESULT.jsonl")
@click.option(
    "-o",
    "--output",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page here; an old file is replaced. Default: beside the record, as .html.",
)
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write JUnit XML here, for a build server. Without -o no page is written then.",
)
@reports_errors
def report(record: Path, page: Path | None, junit: Path | None) -> None:
    """Write a report on a run: a page for people, JUnit XML.

    RESULT.jsonl is the record of the run, the file of JSON lines that validate leaves.

    The page is one HTML file that needs no network: counts by dtype, layout, template and standard;
    what ran the cases, and whether that was a real device; and for each case its inputs, figures,
    worst elements, plots, times and the command that runs it alone. It needs the extra "report".

    JUnit XML has one testcase for each row: FAIL is a failure, ERROR and NOT RUN are errors,
    DISABLED is skipped; it needs no extra.

    The exit status is 0 whatever the verdicts are.
    """
    from opferry.reports import ReportError, read_run, write_html, write_junit

    if page is None and junit is None:
        page = record.with_suffix(".html")
    for written in (page, junit):
        if written is not None and written.resolve() == record.resolve():
            raise click.UsageError(f"{written} is the record; give the report another name")
    try:
        run = read_run(record)
        if junit is not None:
            write_junit(junit, run)
            click.echo(f"{junit}: {len(run)} cases")
        if page is not None:
            write_html(page, run)
            click.echo(f"{page}: {len(run)} cases")
    except ReportError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error
