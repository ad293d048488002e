"""`opferry validate`: the cases of a TTK file, run on a server and judged here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    COULD_NOT_RUN,
    WRONG,
    connected,
    deterministic_option,
    exclusive_option,
    json_option,
    package_option,
    reports_errors,
    say,
    server_address,
    target_option,
    timeout_option,
    warmup_option,
)
from opferry.cli._verdicts import print_verdicts

if TYPE_CHECKING:
    from opferry.client import Client
    from opferry.core.limits import LimitsConfig
    from opferry.operators.call import CallResult
    from opferry.validation import Case, CaseResult, Execute, ResultWriter

STANDARDS = ("mixed", "stat_rel_err", "close", "binary")
EDITIONS = ("current", "earlier")
GOLDEN_MODES = ("Enable", "Promote")

NOT_SERVED = {
    "--sheet": "save the sheet as CSV",
    "-a": "give each run its own result file with -o",
    "--append": "give each run its own result file with -o",
    "--ti": "choose rows by name with -t",
    "--tc": "choose rows by name with -t",
    "--op": "choose rows by name with -t",
    "--priority": "choose rows by name with -t",
    "--rerun": "name the rows that failed with -t",
    "--input-dist": "say it row by row in the column normal_distribution",
    "--dl": "use --run and --compare binary",
    "--dump": "make one call with `opferry run`, which writes its outputs",
    "--dump-format": "make one call with `opferry run`, which writes its outputs",
    "--dump-on-fail": "make one call with `opferry run`, which writes its outputs",
    "--validate": "a file is always checked whole before anything runs",
    "--proc-timeout": "use --timeout",
    "--po": "use --json, or the result file, which grows row by row",
}
"""TTK's words that are not served, and what to use instead."""


class ValidateCommand(click.Command):
    """A command that knows TTK's words, also those that it does not serve."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a word of TTK's that is not served says what to use instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = NOT_SERVED.get(error.option_name)
            if advice is None:
                raise
            text = f"{error.option_name} is a word of TTK's that is not served here; {advice}"
            raise click.UsageError(text, ctx) from error


@click.command(cls=ValidateCommand)
@click.option(
    "-i",
    "--input",
    "case_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="A TTK case file (CSV), ACLNN or E2E.",
)
@click.option(
    "-o",
    "--output",
    "result_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here as CSV: the input's columns, then verdict, figures and times.",
)
@click.option("-t", "--testcase", "names", metavar="NAME,NAME", help="Run only these rows.")
@click.option("--seed", default=0, show_default=True, help="Makes the inputs.")
@click.option(
    "--run",
    "repeat",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often the operator runs on each row's inputs; each run is timed.",
)
@warmup_option
@exclusive_option
@deterministic_option
@click.option(
    "--check/--no-check",
    default=True,
    help="Whether the contract is checked before the backend sees a call. Default: --check.",
)
@click.option(
    "--compare",
    "standard",
    type=click.Choice(STANDARDS),
    default="mixed",
    show_default=True,
    help="The comparison standard.",
)
@click.option(
    "--edition",
    type=click.Choice(EDITIONS),
    default="current",
    show_default=True,
    help="The edition of the standard mixed.",
)
@click.option(
    "--golden-mode",
    type=click.Choice(GOLDEN_MODES),
    default="Enable",
    show_default=True,
    help="Golden in float32 and rounded (Enable), or in float64 (Promote).",
)
@target_option
@package_option
@timeout_option
@json_option
@reports_errors
def validate(
    case_file: Path,
    result_file: Path | None,
    names: str | None,
    target: str | None,
    timeout: float,
    as_json: bool,
    **words: Any,
) -> None:
    """Run the cases of a TTK file through a server and judge the outputs.

    Inputs are generated here from the seed, the golden is computed here on the CPU, and each output
    is compared by the chosen standard. An output that needs query and key is suppressed where they
    are absent. A row with an expected_status is to be refused: by the contract with just that
    status, with --no-check by the backend with 161001, 161002, 561001 or 561002.
    """
    from opferry.validation import CaseFileError, ResultWriter, exit_code, read_cases, select

    try:
        found = read_cases(case_file)
        chosen = found.cases if names is None else select(found, names=_names(names))
        writing = (
            contextlib.nullcontext() if result_file is None else ResultWriter(result_file, found)
        )
    except CaseFileError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error
    if found.unknown_columns:
        say(f"columns that are not used: {', '.join(found.unknown_columns)}")
    with (
        writing as writer,
        server_address(target) as address,
        connected(address, timeout) as client,
    ):
        try:
            results = list(_run(chosen, client, writer, words))
        except CaseFileError as error:  # the result file
            say(f"error: {error}")
            raise SystemExit(WRONG) from error
    if as_json:
        click.echo(json.dumps([_fields(result) for result in results], indent=2))
    else:
        print_verdicts(results, found, address)
    status = exit_code(results)
    if status == COULD_NOT_RUN:
        enabled = any(result.status.value != "DISABLED" for result in results)
        what = "not every enabled row was run" if enabled else "no row is enabled"
        say(f"error: {what}; this is no pass")
    raise SystemExit(status)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError("-t names no row; give testcase names, separated by commas")
    return names


def _run(
    cases: Sequence[Case], client: Client, writer: ResultWriter | None, words: dict[str, Any]
) -> Iterator[CaseResult]:
    """Yield the results as they come, written to the file, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from opferry.validation import GoldenMode, run_cases

    words = {**words, "golden_mode": GoldenMode(words["golden_mode"])}
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("validating", total=len(cases))
        execute, limits = _reach(client)
        for result in run_cases(cases, execute, limits=limits, **words):
            if writer is not None:
                writer.write(result)
            bar.advance(task)
            yield result


def _reach(client: Client) -> tuple[Execute, LimitsConfig | None]:
    """Return what executes cases, and the server's limits.

    If the server cannot be reached, what executes raises just that: every row is then NOT RUN.
    """
    from opferry.errors import ServerBusyError, TransportError

    try:
        return client.execute, client.server_info().limits
    except (TransportError, ServerBusyError) as error:
        failed = error

        def unreachable(*_: Any) -> CallResult:
            raise failed

        return unreachable, None


def _fields(result: CaseResult) -> dict[str, Any]:
    from opferry.validation import result_figures

    figures = {
        # JSON has no words for NaN and infinity
        name: str(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in result_figures(result).items()
    }
    return {"testcase_name": result.case.name, "row": result.case.row, **figures}
