"""How far a run is: a bar on a terminal, plain lines elsewhere, a file for programs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opferry.cli._common import say

LINE_PERIOD_S = 10.0
"""How often a line is written where there is no terminal, in seconds."""

FILE_PERIOD_S = 1.0
"""How often the progress file is written, in seconds."""

FAILED = ("FAIL", "ERROR")
"""The verdicts that are counted as failed."""


class ProgressReport:
    """Tells how far a run is."""

    def __init__(self, total: int, path: Path | None) -> None:
        """Begin.

        Args:
            total: the rows that are to come, those of an interrupted run among them.
            path: the progress file, or None.
        """
        self._total = total
        self._path = path
        self._done = self._failed = self._before = 0
        self._started_s = time.monotonic()
        self._line_s = self._started_s
        self._file_s = 0.0
        self._bar: Any = None
        self._task: Any = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress for the length of a `with` block."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[failed]}", style="bold red"),
                console=console,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task("validating", total=self._total, rate="", failed="")
        with self._bar if self._bar is not None else contextlib.nullcontext():
            try:
                yield
            finally:
                self._write(finished=True)

    def passed_over(self, count: int) -> None:
        """Note rows that had their verdict before this run."""
        self._before += count
        self._done += count
        self._tell()

    def advance(self, status: str) -> None:
        """Note a verdict."""
        self._done += 1
        self._failed += status in FAILED
        self._tell()

    @property
    def _rate(self) -> float:
        elapsed_s = time.monotonic() - self._started_s
        return (self._done - self._before) / elapsed_s if elapsed_s > 0 else 0.0

    def _tell(self) -> None:
        now_s = time.monotonic()
        if self._bar is not None:
            failed = f"{self._failed} failed" if self._failed else ""
            self._bar.update(
                self._task, completed=self._done, rate=f"{self._rate:.1f}/s", failed=failed
            )
        elif now_s - self._line_s >= LINE_PERIOD_S:
            self._line_s = now_s
            rate = self._rate
            left = f", about {_duration((self._total - self._done) / rate)} left" if rate else ""
            failed = f"{self._failed} failed"
            say(f"{self._done} of {self._total} rows, {failed}, {rate:.1f} rows/s{left}")
        if now_s - self._file_s >= FILE_PERIOD_S:
            self._write(finished=False)

    def _write(self, *, finished: bool) -> None:
        if self._path is None:
            return
        self._file_s = time.monotonic()
        rate = self._rate
        left = (self._total - self._done) / rate if rate else None
        fields = {
            "total": self._total,
            "done": self._done,
            "failed": self._failed,
            "rows_per_second": round(rate, 3),
            "seconds_left": None if left is None else round(left, 1),
            "finished": finished,
        }
        part = self._path.with_name(f"{self._path.name}.part")
        # readers see the whole file or the one before
        with contextlib.suppress(OSError):
            part.write_text(json.dumps(fields) + "\n", "utf-8")
            part.replace(self._path)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
