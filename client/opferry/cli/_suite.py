"""A run of cases, from the chosen rows to the files and the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opferry.cli._common import say
from opferry.cli._interrupts import Interrupts, noting_interrupts
from opferry.cli._progress import ProgressReport

if TYPE_CHECKING:
    from opferry.client import Client
    from opferry.core.execution import ServerInfo
    from opferry.validation import Case, CaseFile, CaseResult, CaseStatus, RunSettings
    from opferry.validation.dumps import DumpWriter

MOST_TOLD = 50
"""The most rows that did not pass that are kept to be told at the end; files have them all."""

TABLE_ROWS = 50
"""A run of more rows is told without those that passed."""

Figures = Mapping[str, Any]


@dataclass
class Outcome:
    """What a run came to."""

    settings: RunSettings
    """The settings of the run."""
    counts: Counter[CaseStatus] = field(default_factory=Counter)
    """The rows by verdict."""
    told: list[tuple[Case, Figures]] = field(default_factory=list)
    """The rows that are told at the end: all, or if there are many those that did not pass."""
    untold: int = 0
    """The rows that did not pass beyond those."""
    ran_by: dict[tuple[str, ...], None] = field(default_factory=dict)
    """What ran them: backend, package, library file, digest and known answer."""
    everything: list[tuple[Case, Figures]] = field(default_factory=list)
    """All rows, if they are wanted."""
    remarks: list[str] = field(default_factory=list)
    """What else is told at the end."""
    interrupted: bool = False
    """Whether the user ended it before its end."""


@dataclass(frozen=True)
class Files:
    """Where a run is written to."""

    result_file: Path | None
    """The result CSV."""
    append: bool
    """Whether it goes on with the file that is there."""
    record_file: Path | None
    """The record, JSON lines."""
    resume: bool
    """Whether it goes on with the record that is there."""


@dataclass(frozen=True)
class Suite:
    """What is to be run."""

    case_file: CaseFile
    """The case file."""
    chosen: Sequence[Case]
    """The rows that were chosen."""
    settings: RunSettings
    """The settings of the run."""
    reproduce: Sequence[str]
    """The words of a command that runs any of its rows alone, with -t behind it."""
    command: Sequence[str]
    """The words of a command that runs all of it again."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What else decides over the verdicts, by name."""


def run_suite(
    suite: Suite,
    results: Callable[[Iterable[Case]], Iterator[CaseResult]],
    files: Files,
    dumps: DumpWriter | None,
    progress: ProgressReport,
    *,
    target: str,
    info: ServerInfo | None,
    keep_all: bool,
    stop: Callable[[], None],
) -> Outcome:
    """Run the cases that have no verdict yet, and write what comes of them.

    Args:
        suite: what is to be run.
        results: returns the results of cases, in their order.
        files: where they are written to.
        dumps: writes tensors, or None.
        progress: is told of each verdict.
        target: the server's address, for the record.
        info: what it says of itself; None if it cannot be reached.
        keep_all: whether `Outcome.everything` is wanted.
        stop: ends what *results* waits for; called when the user wants an end.

    Raises:
        CaseFileError: if a file cannot be written, or gone on with.
    """
    from opferry.validation import BatchConsistency, CaseStatus, ResultWriter, result_figures
    from opferry.validation.journal import Journal
    from opferry.validation.records import run_record

    outcome = Outcome(suite.settings)
    consistency = BatchConsistency() if suite.settings.batch_consistency else None
    with ExitStack() as stack:
        journal = writer = None
        done: Mapping[int, Figures] = {}
        if files.record_file is not None:
            run = run_record(
                suite.case_file,
                len(suite.chosen),
                suite.settings,
                target=target,
                server={} if info is None else server_record(info),
                reproduce=suite.reproduce,
                command=suite.command,
                also=suite.also,
            )
            journal = stack.enter_context(Journal(files.record_file, run, resume=files.resume))
            done = journal.done
            if journal.set_aside is not None:
                say(
                    f"{files.record_file} was the record of an interrupted run, kept as "
                    f"{journal.set_aside}; to go on with one, give --resume"
                )
            if consistency is not None:
                # what slices were compared with is not in the record
                again = {case.row for case in suite.chosen if case.batch is not None}
                done = {row: figures for row, figures in done.items() if row not in again}
        if files.result_file is not None:
            writer = stack.enter_context(
                ResultWriter(files.result_file, suite.case_file, append=files.append)
            )
        interrupts = stack.enter_context(noting_interrupts(stop))
        stack.enter_context(progress.shown())
        progress.passed_over(sum(case.row in done for case in suite.chosen))
        coming = results(case for case in suite.chosen if case.row not in done)
        try:
            for case in suite.chosen:
                figures: Figures
                if case.row in done:
                    figures = done[case.row]
                else:
                    result = _next(coming, interrupts)
                    if consistency is not None:
                        result = consistency.check(result)
                    if dumps is not None:
                        dumps.write(result)
                    result = replace(result, dumped={})
                    figures = result_figures(result)
                    if journal is not None:
                        journal.write(result)
                    progress.advance(result.status.value)
                if writer is not None:
                    writer.write_figures(case, figures)
                _note(outcome, case, figures, len(suite.chosen), keep_all=keep_all)
            next(coming, None)  # nothing more comes: the stream ends as it should
        except KeyboardInterrupt:
            outcome.interrupted = True
            rest = len(suite.chosen) - sum(outcome.counts.values())
            outcome.counts[CaseStatus.NOT_RUN] += rest
        finally:
            close = getattr(coming, "close", None)
            if close is not None:
                close()
    if consistency is not None:
        outcome.remarks.append(consistency.summary())
    return outcome


def _next(coming: Iterator[CaseResult], interrupts: Interrupts) -> CaseResult:
    """Return the next result; what comes of being stopped is no result, and no error."""
    from opferry.validation import CaseStatus

    interrupts.check()
    try:
        result = next(coming)
    except Exception:
        interrupts.check()
        raise
    if result.status is CaseStatus.NOT_RUN:
        interrupts.check()
    return result


def _note(
    outcome: Outcome, case: Case, figures: Figures, row_count: int, *, keep_all: bool
) -> None:
    from opferry.validation import CaseStatus

    status = CaseStatus(figures["precision_status"])
    outcome.counts[status] += 1
    if keep_all:
        outcome.everything.append((case, figures))
    if row_count <= TABLE_ROWS or status not in (CaseStatus.PASS, CaseStatus.DISABLED):
        if len(outcome.told) < MOST_TOLD:
            outcome.told.append((case, figures))
        else:
            outcome.untold += 1
    if figures.get("backend"):
        names = ("backend", "operator_package", "library_file", "package_digest", "known_answer")
        outcome.ran_by[tuple(str(figures.get(name) or "") for name in names)] = None


def server_record(info: ServerInfo) -> dict[str, Any]:
    """Return what the record of a run says of its server."""
    return {
        "opferry_version": info.opferry_version,
        "backend": info.backend,
        "real_device": info.real_device,
        "reference_kernel": info.reference_kernel,
        "versions": dict(info.versions),
        "workers": [{"name": worker.name, "device": worker.device} for worker in info.workers],
    }


def reach(client: Client) -> tuple[ServerInfo | None, Exception | None]:
    """Return what a server says of itself, or the error because of which no row can be run."""
    from opferry.errors import ServerBusyError, TransportError

    try:
        return client.server_info(), None
    except (TransportError, ServerBusyError) as error:
        return None, error


def not_run(cases: Iterable[Case], settings: RunSettings, error: Any) -> Iterator[CaseResult]:
    """Yield the results of cases that no server can be reached for."""
    from opferry.validation import CaseResult, CaseStatus

    told = ""
    for case in cases:
        if not case.is_enabled:
            yield CaseResult(case, settings, CaseStatus.DISABLED, "is_enabled is False")
            continue
        reason = told or str(error)
        yield CaseResult(case, settings, CaseStatus.NOT_RUN, reason, error=None if told else error)
        told = told or f"the run stopped at row {case.row} ({case.name}): {error}"
