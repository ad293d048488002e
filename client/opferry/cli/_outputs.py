"""The files that a run is written to, and the reports that are made of its record."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from opferry.cli._common import WRONG, say
from opferry.cli._suite import Files


@contextlib.contextmanager
def output_files(words: dict[str, Any]) -> Iterator[Files]:
    """Yield where a run is written to; a record that only reports need goes away again."""
    result_file: Path | None = words["result_file"] or words["append_file"]
    record_file: Path | None = words["record_file"]
    if record_file is None and result_file is not None and words["append_file"] is None:
        record_file = result_file.with_suffix(".jsonl")
    with contextlib.ExitStack() as stack:
        if record_file is None and (words["html"] or words["junit"]):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="opferry-"))
            record_file = Path(folder) / "record.jsonl"
        yield Files(
            result_file=result_file,
            append=words["append_file"] is not None,
            record_file=record_file,
            resume=words["resume"],
        )


def keep_results(files: Files) -> Files:
    """Return where a run is written to that no server can be reached for: over no earlier results.

    Args:
        files: where it would be written to.
    """
    there = [path for path in (files.result_file, files.record_file) if path and path.exists()]
    if not there:
        return files
    say(f"{' and '.join(map(str, there))}: left as they are, since nothing can be run")
    return replace(files, result_file=None, record_file=None)


def check_reports(words: dict[str, Any]) -> None:
    """Refuse a report that cannot be made, before anything is run.

    Raises:
        click.UsageError: naming the extra that is missing.
    """
    from opferry.reports import ReportError, check_page_can_be_made

    for option, name in (("html", "html"), ("junit", "junit"), ("po", "progress_file")):
        path: Path | None = words[name]
        if path is None:
            continue
        if not path.resolve().parent.is_dir():
            raise click.UsageError(f"--{option} {path}: there is no folder {path.parent}")
        if not os.access(path.resolve().parent, os.W_OK):
            raise click.UsageError(f"--{option} {path}: nothing can be written to {path.parent}")
    if words["html"]:
        try:
            check_page_can_be_made()
        except ReportError as error:
            raise click.UsageError(f"--html: {error}") from error


def write_reports(words: dict[str, Any], files: Files) -> None:
    """Write the reports that were asked for.

    Raises:
        SystemExit: with status 2, if one cannot be written.
    """
    if not words["html"] and not words["junit"]:
        return
    from opferry.reports import ReportError, read_run, write_html, write_junit

    if files.record_file is None:
        return  # nothing was run, and what is there was left as it is
    try:
        run = read_run(files.record_file)
        if words["junit"]:
            write_junit(words["junit"], run)
        if words["html"]:
            write_html(words["html"], run)
    except ReportError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error
