"""How calls scale: with the size of tensors, with time, and with workers and callers.

    python -m benchmarks.scale [--parts sizes steady workers] [--json FILE]

sizes: a call of 1 GiB each way against one of 64 MiB, in turns. steady: small calls one after the
other; the rate of the first block against that of the last, and what front and client hold.
workers: one front with 1, 2 and 4 workers, callers in up to four processes; how many processors
front, workers and clients take, of which the front can use little more than one. Only ratios mean
anything on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.load import ROLES, Load, steady
from benchmarks.processes import KIB, MIB, let_workers_import_benchmarks

SIZES = (64 * MIB, 1024 * MIB)

WORKERS = (1, 2, 4)

LOADS = ((KIB, 1), (KIB, 4), (KIB, 16), (16 * MIB, 1), (16 * MIB, 4))
"""Bytes each way, and callers."""

BLOCK = 2_000
"""The calls of the first and of the last block of a steady run."""


def take_turns(
    loads: list[tuple[dict[str, Any], Load]], seconds: float, turns: int
) -> list[dict[str, Any]]:
    """Let loads take turns after one that does not count, and return a row for each."""
    for turn in range(turns + 1):
        for _, load in loads:
            load.turn(seconds / turns if turn else 0.0)
            if not turn:
                load.forget()
    return [{**what, **load.figures()} for what, load in loads]


def measure_sizes(seconds: float, turns: int) -> list[dict[str, Any]]:
    """Return a row for each size."""
    with ExitStack() as stack:
        loads = []
        for size in SIZES:
            load = Load(1, size, 1)
            stack.callback(load.close)
            loads.append(({"bytes": size}, load))
        rows = take_turns(loads, seconds, turns)
    for row in rows:
        row["ratio_to_smallest"] = row["ms_per_mib"] / rows[0]["ms_per_mib"]
    return rows


def measure_steady(count: int) -> dict[str, Any]:
    """Return the blocks of a steady run, and what the last is to the first."""
    block = min(BLOCK, max(1, count // 2))
    blocks = steady(count, block, KIB)
    first, last = blocks[0], blocks[-1]
    ratios = {name: last[name] / first[name] for name in first if name != "calls"}
    return {"blocks": blocks, "last_to_first": ratios}


def measure_workers(seconds: float, turns: int) -> list[dict[str, Any]]:
    """Return a row for each load and number of workers."""
    rows = []
    for size, callers in LOADS:
        with ExitStack() as stack:
            loads = []
            for workers in WORKERS:
                load = Load(workers, size, callers)
                stack.callback(load.close)
                loads.append(({"bytes": size, "callers": callers, "workers": workers}, load))
            rows += take_turns(loads, seconds, turns)
    return rows


def show(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print a table.

    Args:
        title: above it.
        rows: what was measured.
        columns: the headings, and how a figure is written, by the figure's name.
    """
    table = Table(title=title, title_justify="left")
    for name, form in columns.items():
        table.add_column(name.replace("_", " "), justify="left" if form == "s" else "right")
    for row in rows:
        table.add_row(*(format(row[name], form) for name, form in columns.items()))
    Console(width=120).print(table)


def show_all(found: dict[str, Any]) -> None:
    """Print a table for each part that was measured."""
    if "sizes" in found:
        columns = {"bytes": ",", "calls": ",", "p50_ms": ",.1f"}
        columns |= {"ms_per_mib": ".2f", "ratio_to_smallest": ".2f"}
        show("the time of a MiB, by the size of the call", found["sizes"], columns)
    if "steady" in found:
        blocks = found["steady"]["blocks"]
        columns = dict.fromkeys(blocks[0], ",.0f")
        show("small calls one after the other", blocks, columns)
        ratios = found["steady"]["last_to_first"]
        show("the last block, of the first", [ratios], dict.fromkeys(ratios, ".3f"))
    if "workers" in found:
        columns = {"bytes": ",", "callers": ",", "workers": ",", "p50_ms": ",.2f"}
        columns |= {"calls_per_s": ",.0f", "mib_per_s": ",.0f"}
        columns |= {f"{role}_cores": ".2f" for role in ROLES}
        show("one front, and the processors that each side uses", found["workers"], columns)


def main() -> None:
    """Measure, print tables, and write JSON if asked to."""
    parts = ("sizes", "steady", "workers")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="default: all")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each contender and case")
    parser.add_argument("--turns", type=int, default=5, help="in so many turns")
    parser.add_argument("--calls", type=int, default=20_000, help="of a steady run")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "processors": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    if "sizes" in options.parts:
        found["sizes"] = measure_sizes(options.seconds, options.turns)
    if "steady" in options.parts:
        found["steady"] = measure_steady(options.calls)
    if "workers" in options.parts:
        found["workers"] = measure_workers(options.seconds, options.turns)
    show_all(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    let_workers_import_benchmarks()
    main()
