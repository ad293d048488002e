"""What moving tensors costs, against peers in the same run.

    python -m benchmarks.transport [--all] [--seconds S] [--json FILE]

Every contender sends the same number of bytes and gets them back; server and callers are processes
of their own, and contenders take turns, so that a slow moment of the machine falls on all. Figures
are medians over all turns. opferry runs with a backend that returns its inputs, in its worker
process, and with the CPU reference. Only ratios mean anything on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.more_peers import ALL_PEERS
from benchmarks.peers import PEERS
from benchmarks.processes import (
    CONTEXT,
    KIB,
    MIB,
    cpu_s,
    let_workers_import_benchmarks,
    run_callers,
)

CASES = [(KIB, 1), (KIB, 16), (MIB, 1), (16 * MIB, 1), (256 * MIB, 1)]
"""Bytes each way, and callers."""

MORE_CASES = [(KIB, 4), (MIB, 4), (MIB, 16), (16 * MIB, 4)]


class Contender:
    """A server and its callers, each in a process, for one size and number of callers."""

    def __init__(self, name: str, size: int, callers: int) -> None:
        self.name = name
        self.turns: list[dict[str, Any]] = []
        ours, theirs = CONTEXT.Pipe()
        self._server = CONTEXT.Process(target=_serve, args=(name, theirs), daemon=False)
        self._server.start()
        theirs.close()  # so that the end of a server that could not start is the pipe's
        address = ours.recv()
        self._pipe, theirs = CONTEXT.Pipe()
        self._callers = CONTEXT.Process(
            target=run_callers, args=(name, address, size, callers, theirs), daemon=True
        )
        self._callers.start()
        theirs.close()
        self._pipe.recv()
        self.idle_bytes = self.memory_bytes()
        self.peak_bytes = 0

    def turn(self, seconds: float) -> None:
        """Make calls for some seconds, at least one for each caller."""
        before = self._cpu_s()
        self._pipe.send(seconds)
        found = self._pipe.recv()
        found["cpu_s"] = (self._cpu_s() - before) / len(found["latencies_ms"])
        self.turns.append(found)

    def watch_memory(self) -> None:
        """Make calls, and look at the memory of both sides meanwhile."""
        self._pipe.send(0.0)
        while not self._pipe.poll(0.005):
            self.peak_bytes = max(self.peak_bytes, self.memory_bytes() - self.idle_bytes)
        self._pipe.recv()

    def memory_bytes(self) -> int:
        """Return what both sides have in memory, shared pages once."""
        total = 0
        for process in self._family():
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total

    def close(self) -> None:
        self._callers.terminate()
        for process in reversed(self._family()):
            process.terminate()
        self._server.join()

    def _family(self) -> list[psutil.Process]:
        roots = [psutil.Process(process.pid) for process in (self._server, self._callers)]
        return [*roots, *(child for root in roots for child in root.children(recursive=True))]

    def _cpu_s(self) -> float:
        return sum(map(cpu_s, self._family()))


def _serve(name: str, pipe: Any) -> None:
    ALL_PEERS[name]().serve(pipe.send)


@contextmanager
def contenders(names: Sequence[str], size: int, callers: int) -> Iterator[list[Contender]]:
    """Start contenders for the length of a `with` block."""
    with ExitStack() as stack:
        found = []
        for name in names:
            contender = Contender(name, size, callers)
            stack.callback(contender.close)
            found.append(contender)
        yield found


def measure(
    names: Sequence[str], size: int, callers: int, seconds: float, turns: int
) -> list[dict[str, Any]]:
    """Return a row for each contender."""
    with contenders(names, size, callers) as found:
        for contender in found:
            contender.turn(0.0)
            contender.turns.clear()
        for _ in range(turns):
            for contender in found:
                contender.turn(seconds / turns)
        if size >= 16 * MIB:
            for contender in found:
                contender.watch_memory()
        return [_row(contender, size, callers) for contender in found]


def _row(contender: Contender, size: int, callers: int) -> dict[str, Any]:
    latencies = sorted(latency for turn in contender.turns for latency in turn["latencies_ms"])
    rates = [len(turn["latencies_ms"]) / turn["wall_s"] for turn in contender.turns]
    return {
        "contender": contender.name,
        "bytes": size,
        "callers": callers,
        "calls": len(latencies),
        "p50_ms": statistics.median(latencies),
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        "calls_per_s": statistics.median(rates),
        "mib_per_s": statistics.median(rates) * size / MIB,
        "cpu_ms": statistics.median(turn["cpu_s"] for turn in contender.turns) * 1000,
        "peak_mib": contender.peak_bytes / MIB,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print one table a case."""
    size, callers = rows[0]["bytes"], rows[0]["callers"]
    shown = f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"
    title = f"{shown} each way, {callers} caller{'s' * (callers > 1)}"
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    ours = next(row for row in rows if row["contender"] == "opferry")
    for heading in (
        "p50 ms",
        "p99 ms",
        "calls/s",
        "MiB/s",
        "CPU ms a call",
        "peak MiB",
        "opferry is",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["contender"],
            *(f"{row[name]:.2f}" for name in ("p50_ms", "p99_ms")),
            *(f"{row[name]:,.0f}" for name in ("calls_per_s", "mib_per_s")),
            f"{row['cpu_ms']:.2f}",
            f"{row['peak_mib']:,.0f}" if row["peak_mib"] else "",
            f"{ours['calls_per_s'] / row['calls_per_s']:.2f} x",
        )
    Console(width=120).print(table)


def taking_part(names: Iterable[str]) -> list[str]:
    """Return the contenders that can take part, and print why the others do not."""
    missing = {name: ALL_PEERS[name]().missing() for name in names}
    for name, modules in missing.items():
        if modules:
            print(f"{name} takes no part: not installed here: {modules} (make bench-all)")
    return [name for name, modules in missing.items() if not modules]


def main() -> None:
    """Measure, print tables, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="more callers, and more peers")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each contender and case")
    parser.add_argument("--turns", type=int, default=7, help="in so many turns")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    names = taking_part(ALL_PEERS if options.all else PEERS)
    rows = []
    for size, callers in CASES + (MORE_CASES if options.all else []):
        found = measure(names, size, callers, options.seconds, options.turns)
        show(found)
        rows += found
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    let_workers_import_benchmarks()
    main()
