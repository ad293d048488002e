"""`opferry validate`: the cases of a TTK file, judged on a server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    COULD_NOT_RUN,
    WRONG,
    deterministic_option,
    exclusive_option,
    given_target,
    json_option,
    package_option,
    priority_option,
    reports_errors,
    say,
    server_address,
    target_option,
)
from opferry.cli._implementations import connect_to, other_client, results_of
from opferry.cli._ttk_words import RANGES, RepeatType, ValidateCommand
from opferry.cli._validate_words import (
    ALSO_DECIDING,
    CHOOSING,
    REPRODUCED,
    check_words,
    chosen_cases,
    command_again,
    dump_writer,
    run_settings,
)
from opferry.cli._verdicts import print_verdicts

if TYPE_CHECKING:
    from opferry.cli._suite import Outcome
    from opferry.validation import Case, CaseFile, CaseResult

STANDARDS = ("mixed", "stat_rel_err", "close", "cosine", "binary", "cross_check")
EDITIONS = ("current", "earlier")
LEVELS = ("L0", "L1", "L2")
GOLDEN_MODES = ("Enable", "Promote", "Disable")
DUMP_FORMATS = ("bin", "npy", "pt", "safetensors")

EMBEDDED = "embedded"
"""What the record of a run says in place of the address of a server that was started for it."""


@click.command(cls=ValidateCommand)
@click.option(
    "-i",
    "--input",
    "case_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="A TTK case file, ACLNN or E2E: CSV, or XLSX.",
)
@click.option("--sheet", metavar="NAME", help="The sheet of an XLSX file. Default: the first.")
@click.option(
    "-o",
    "--output",
    "result_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here as CSV: the input's columns, then verdict, figures and times; and "
    "beside it their record, with the ending .jsonl.",
)
@click.option(
    "-a",
    "--append",
    "append_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the results to this CSV instead; its columns must be the same.",
)
@click.option(
    "--record",
    "record_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the record here. Default: beside -o.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run whose record is there: rows that have a verdict are not run again.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help='Write a report, a page for people. Needs the extra "report".',
)
@click.option(
    "--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write JUnit XML, for CI."
)
@click.option("-t", "--testcase", "names", metavar="NAME,NAME", help="Run only these rows.")
@click.option(
    "--ti",
    "--testcase-index",
    "indexes",
    type=RANGES,
    metavar="1,3 or 1-10",
    help="Run only the rows at these positions; the first row is 0.",
)
@click.option(
    "--tc",
    "--testcase-count",
    "count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run N of the rows, drawn by the seed.",
)
@click.option(
    "--op", "--operator", "operators", metavar="NAME,NAME", help="Run only rows of these operators."
)
@click.option(
    "--priority",
    "priorities",
    type=RANGES,
    metavar="1-3",
    help="Run only rows of these priorities.",
)
@click.option(
    "--soc", metavar="NAME", help="Run only rows whose soc_series has this SoC, or is empty."
)
@click.option(
    "--rerun",
    metavar="COLUMN",
    help="Run the rows that failed before: the input is an earlier result, and COLUMN its "
    "precision_status or perf_status.",
)
@click.option("--seed", default=0, show_default=True, help="Makes the inputs.")
@click.option(
    "--input-dist",
    "distribution",
    type=click.Choice(("uniform", "normal")),
    help="How all inputs are distributed. Default: as each row's normal_distribution says.",
)
@click.option(
    "--inputs",
    type=click.Choice(("server", "client")),
    default="server",
    show_default=True,
    help="Where inputs are made: there, or here and sent. The bits are the same.",
)
@click.option(
    "--run",
    "repeat",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often the operator runs on each row's inputs; each run is timed.",
)
@click.option(
    "--warmup",
    type=RepeatType(),
    default=0,
    show_default=True,
    help="How often the operator runs before that, untimed.",
)
@exclusive_option
@priority_option
@deterministic_option
@click.option(
    "--dl",
    "--deterministic-level",
    "deterministic_level",
    type=click.Choice(("0", "1", "3")),
    default="0",
    show_default=True,
    help="1: as --deterministic, with at least two runs. 3: compare the slices of rows that have "
    "one batch_seed.",
)
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
    "--level",
    type=click.Choice(LEVELS),
    default="L1",
    show_default=True,
    help="The level of the standard cross_check.",
)
@click.option(
    "--against-target",
    metavar="HOST:PORT",
    help="For cross_check: the server of the other implementation. Default: the same.",
)
@click.option(
    "--against-package",
    metavar="NAME",
    help="For cross_check: the operator package of the other implementation.",
)
@click.option(
    "--golden-mode",
    type=click.Choice(GOLDEN_MODES),
    default="Enable",
    show_default=True,
    help="Golden in float32 and rounded (Enable), in float64 (Promote), or none, and nothing "
    "compared (Disable).",
)
@click.option(
    "--dump", metavar="in,out,golden", help="Write these tensors of each row; full: all of them."
)
@click.option(
    "--dump-format",
    type=click.Choice(DUMP_FORMATS),
    default="bin",
    show_default=True,
    help="As what. pt needs PyTorch.",
)
@click.option(
    "--dump-on-fail", is_flag=True, help="Write all tensors of rows that fail, to --dump-folder."
)
@click.option(
    "--dump-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to. Default: the folder dump, beside -o.",
)
@click.option("--validate", "only_check", is_flag=True, help="Check the file, and run nothing.")
@click.option(
    "--timeout",
    "--proc-timeout",
    "timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds without a word from the server after which a run is given up.",
)
@click.option(
    "--reconnect",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds that a server which was there may be away; rows without verdict are sent again.",
)
@click.option(
    "--po",
    "--progress-output",
    "progress_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write how far the run is to this file, as JSON, each second.",
)
@target_option
@package_option
@json_option
@reports_errors
def validate(case_file: Path, as_json: bool, **words: Any) -> None:
    """Run the cases of a TTK file on a server, and have it judge the outputs.

    Inputs are made on the server from each row's ranges and the seed; the golden is computed there,
    on the CPU, and each output is compared by the chosen standard. Only verdicts come back, unless
    tensors are asked for. An output that needs query and key is suppressed where they are absent. A
    row with an expected_status is to be refused: by the contract with just that status, with
    --no-check by the backend with 161001, 161002, 561001 or 561002.
    """
    from opferry.validation import CaseFileError

    try:
        _validate(case_file, as_json, words)
    except CaseFileError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error


def _validate(case_file: Path, as_json: bool, words: dict[str, Any]) -> None:
    from opferry.cli._outputs import check_reports, keep_results, output_files, write_reports
    from opferry.cli._progress import ProgressReport
    from opferry.cli._suite import Suite, not_run, reach, run_suite
    from opferry.validation import read_cases
    from opferry.validation.results import is_result_column
    from opferry.validation.suite import exit_code_of

    check_words(words)
    check_reports(words)
    found = read_cases(case_file, words["sheet"])
    chosen = chosen_cases(found, words)
    if words["deterministic_level"] == "3" and all(case.batch is None for case in chosen):
        raise click.UsageError(
            "--dl 3 compares the slices that batch_seed, batch_axis and batch_slice_info name; no "
            "chosen row has them"
        )
    if words["count"] is not None and len(chosen) < words["count"]:
        say(f"--tc {words['count']}: there are {len(chosen)} rows to draw from")
    unknown = [name for name in found.unknown_columns if not is_result_column(name)]
    if unknown:
        say(f"columns that are not used: {', '.join(unknown)}")
    if words["only_check"]:
        click.echo(f"{case_file}: {len(chosen)} rows are well formed")
        return
    settings = run_settings(words)
    also = {name: None if words[name] is None else str(words[name]) for name in ALSO_DECIDING}
    words_again = command_again(case_file, REPRODUCED)
    suite = Suite(
        found,
        chosen,
        settings,
        words_again,
        command_again(case_file, (*REPRODUCED, *CHOOSING)),
        also,
    )
    dumps = dump_writer(words, settings)
    progress = ProgressReport(len(chosen), words["progress_file"])
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(output_files(words))
        address = stack.enter_context(server_address(words["target"]))
        client = stack.enter_context(connect_to(address, words))
        info, failed = reach(client)

        other = None
        if info is not None and settings.standard == "cross_check":
            other = other_client(stack, client, info, words)

        if failed is not None:
            files = keep_results(files)

        def results(cases: Iterable[Case]) -> Iterator[CaseResult]:
            if failed is not None:
                return not_run(cases, settings, failed)
            return results_of(client, other, cases, settings, dumps, words)

        def stop() -> None:
            for one in filter(None, (client, other)):
                one.close()

        try:
            outcome = run_suite(
                suite,
                results,
                files,
                dumps,
                progress,
                target=given_target(words["target"]) or EMBEDDED,
                info=info,
                keep_all=as_json,
                stop=stop,
            )
        except OSError as error:
            # what is written outside the files of results
            say(f"error: {error.filename or 'a file'} cannot be written: {error.strerror}")
            raise SystemExit(WRONG) from error
        _tell(outcome, found, address, as_json, files.record_file)
        write_reports(words, files)
    status = exit_code_of({case for case, count in outcome.counts.items() if count})
    if status == COULD_NOT_RUN:
        ran = any(outcome.counts[case] for case in outcome.counts if case.value != "DISABLED")
        what = "not every enabled row was run" if ran else "no row is enabled"
        say(f"error: {what}; this is no pass")
    raise SystemExit(status)


def _tell(
    outcome: Outcome, found: CaseFile, address: str, as_json: bool, record_file: Path | None
) -> None:
    if as_json:
        fields = [_fields(case, figures) for case, figures in outcome.everything]
        click.echo(json.dumps(fields, indent=2))
    else:
        print_verdicts(outcome, found, address)
    if outcome.interrupted:
        kept = record_file is not None and record_file.exists()
        how = "go on with --resume" if kept else "with -o a run can go on later"
        say(f"interrupted; {how}")


def _fields(case: Case, figures: Any) -> dict[str, Any]:
    told = {
        # JSON has no words for NaN and infinity
        name: str(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in figures.items()
    }
    return {"testcase_name": case.name, "row": case.row, **told}
