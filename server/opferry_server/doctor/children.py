"""Runs a stage in a child process within a time limit, and tells how far it came."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from opferry_server.backends.base import BackendSettings
from opferry_server.workers.messages import encode_settings
from opferry_server.workers.running import describe_exit

KILL_WAIT_S = 5.0
"""How long a killed child gets to be gone; one that hangs in the driver may not be."""

_TICK_S = 0.1
_LAST_BYTES = 2000
_LAST_LINES = 3


@dataclass(frozen=True)
class StepResult:
    """What came of one step."""

    ok: bool
    """Whether it did what it should."""
    text: str = ""
    """What went wrong: an error's text, or how the child ended."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was found out."""
    seconds: float = 0.0
    """How long it took."""
    errno: int | None = None
    """The system's error number, if that is what went wrong."""
    ended_child: bool = False
    """Whether the child crashed or hung in it."""


def run_stage(
    stage: str,
    settings: BackendSettings,
    environment: Mapping[str, str],
    limit_s: float,
    items: Sequence[str] = (),
    *,
    goes_on: bool = False,
) -> dict[str, StepResult]:
    """Run a stage and return its steps, in order; those that were not reached are absent.

    Args:
        stage: one of `stages.STAGES`.
        settings: what the backend would be told.
        environment: the child's variables.
        limit_s: seconds that the child gets.
        items: what the stage shall look at, where that is not its own affair.
        goes_on: whether to start again without a step in which the child crashed or hung.
    """
    found: dict[str, StepResult] = {}
    guilty: list[str] = []
    while True:
        words = [word for item in items for word in ("--item", item)]
        words += [word for name in guilty for word in ("--without", name)]
        steps = _run_once(stage, settings, environment, limit_s, words)
        found.update({name: step for name, step in steps.items() if name not in guilty})
        ended = [name for name, step in steps.items() if step.ended_child and name not in guilty]
        if not (goes_on and ended and "" not in ended):
            return found
        guilty += ended


def _run_once(
    stage: str,
    settings: BackendSettings,
    environment: Mapping[str, str],
    limit_s: float,
    words: Sequence[str],
) -> dict[str, StepResult]:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as output, open(reader, "rb", buffering=0) as events:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "opferry_server.doctor.stages", stage),
                    *("--facts-fd", str(writer), "--settings", encode_settings(settings)),
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        started = monotonic()
        try:
            steps, current, ended = _listen(process, events, limit_s)
            if not ended:
                how = _how_it_ended(process, limit_s) + _last_words(output)
                # a child that dies before its first step has no step to blame: "" stands for it
                steps[current] = StepResult(
                    False, how, seconds=round(monotonic() - started, 3), ended_child=True
                )
            return steps
        finally:
            _end(process)


def _listen(
    process: subprocess.Popen[bytes], events: IO[bytes], limit_s: float
) -> tuple[dict[str, StepResult], str, bool]:
    """Return the steps, the one that was begun last, and whether the child came to its end."""
    steps: dict[str, StepResult] = {}
    current, rest, deadline = "", b"", monotonic() + limit_s
    while monotonic() < deadline:
        gone = process.poll() is not None
        if select.select([events], [], [], 0 if gone else _TICK_S)[0]:
            data = events.read(65536)
            if not data:
                # all ends are closed; the exit status is about to be there
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_WAIT_S)
                break
            *lines, rest = (rest + data).split(b"\n")
            for event in map(json.loads, lines):
                if "end" in event:
                    return steps, current, True
                if "begin" in event:
                    current = event["begin"]
                else:
                    _note(steps, event)
        elif gone:
            break
    return steps, current, False


def _note(steps: dict[str, StepResult], event: Mapping[str, Any]) -> None:
    if "done" in event:
        steps[event["done"]] = StepResult(
            True, facts=event["facts"], seconds=round(event["seconds"], 3)
        )
    else:
        steps[event["failed"]] = StepResult(
            False, event["text"], seconds=round(event["seconds"], 3), errno=event["errno"]
        )


def _how_it_ended(process: subprocess.Popen[bytes], limit_s: float) -> str:
    code = process.poll()
    if code is None:
        return f"did not return within {limit_s:g} s; the process that tried it was ended"
    how = describe_exit(code)
    if code == -signal.SIGKILL:
        how += " (out of memory? see dmesg)"
    return f"the process that tried it {how}"


def _last_words(output: IO[bytes]) -> str:
    """Return the last lines that a child printed, for the end of a sentence."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LAST_BYTES))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line][-_LAST_LINES:]
    return f"; its last words: {' | '.join(said)}" if said else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_S)
