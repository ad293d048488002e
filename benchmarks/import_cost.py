"""What importing opferry costs, against importing numpy in the same run.

    python benchmarks/import_cost.py [--rounds N]

CPU time (user and system) of whole fresh processes, less that of an empty one; the median of
rounds that are interleaved, so that a slow moment of the machine falls on all alike. The first
round fills the caches and does not count. Prints a table, then one line of JSON; times are in
seconds. A ratio says how often numpy's import fits in; "aim" is what we want it to be at the most.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

OPFERRY = str(Path(sys.executable).with_name("opferry"))

COMMANDS: dict[str, list[str]] = {
    "python": [sys.executable, "-c", "pass"],
    "import numpy": [sys.executable, "-c", "import numpy"],
    "import opferry": [sys.executable, "-c", "import opferry"],
    "import opferry, use Client": [sys.executable, "-c", "import opferry; opferry.Client"],
    "opferry --help": [OPFERRY, "--help"],
}
"""What is measured."""

AIMS = {"import opferry": 1.6, "opferry --help": 1.0}
"""The largest ratios that we want; the client's first use has none: it loads numpy and grpc."""


def cpu_s(command: list[str]) -> float:
    """Return the CPU time of a process, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """Return the median CPU time of each command, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for index in range(rounds + 1):
        for name, command in COMMANDS.items():
            seconds = cpu_s(command)
            if index > 0:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="how often each is run (15)")
    rounds = max(1, parser.parse_args().rounds)
    medians = measure(rounds)
    numpy_s = medians["import numpy"] - medians["python"]
    ratios = {name: (found - medians["python"]) / numpy_s for name, found in medians.items()}
    print(f"{'':28} {'CPU s':>8} {'ratio':>7} {'aim':>5}")
    for name, found in medians.items():
        aim = f"{AIMS[name]:5.1f}" if name in AIMS else "    -"
        print(f"{name:28} {found:8.3f} {ratios[name]:7.2f} {aim}")
    figures = {"rounds": rounds, "cpu_s": medians, "ratio_to_numpy": ratios, "aims": AIMS}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
