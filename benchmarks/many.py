"""What small calls cost one by one and over one stream, and large ones with views and copies.

    python -m benchmarks.many [--calls N] [--large-mib N] [--turns N] [--json FILE]

One server with a worker that returns its inputs; ways take turns. Figures are medians over all
turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import opferry
from benchmarks.peers import ECHO_BACKEND, rotary_inputs
from opferry.embedded import embedded_server

ROOT = str(Path(__file__).parents[1])


def measure(calls: int, large_mib: int, turns: int) -> dict[str, float]:
    """Return the median milliseconds of a call, by way."""
    opferry.tune_malloc()
    gradient, cos = rotary_inputs(1024)
    small = {"grad_query_embed": gradient, "grad_key_embed": gradient, "cos": cos, "sin": cos}
    gradient, cos = rotary_inputs(large_mib * 2**20)
    large = {"grad_query_embed": gradient, "grad_key_embed": gradient, "cos": cos, "sin": cos}
    with (
        embedded_server(backend=ECHO_BACKEND, environment={"PYTHONPATH": ROOT}) as server,
        opferry.connect(server.address) as near,
        opferry.connect(server.address, shared_memory=False) as far,
    ):

        def one_by_one() -> None:
            for _ in range(calls):
                near.apply_rotary_pos_emb_grad(**small, layout=4)

        def over_one_stream() -> None:
            outcomes = near.execute_many(
                "apply_rotary_pos_emb_grad", [small] * calls, attributes={"layout": 4}
            )
            for outcome in outcomes:
                outcome.result()

        ways: dict[str, tuple[Callable[[], object], int]] = {
            "1 KiB, one by one": (one_by_one, calls),
            "1 KiB, execute_many": (over_one_stream, calls),
            f"{large_mib} MiB, network": (
                lambda: far.apply_rotary_pos_emb_grad(**large, layout=4),
                1,
            ),
            f"{large_mib} MiB, shared memory, copies": (
                lambda: near.apply_rotary_pos_emb_grad(**large, layout=4, copy=True),
                1,
            ),
            f"{large_mib} MiB, shared memory, views": (
                lambda: near.apply_rotary_pos_emb_grad(**large, layout=4),
                1,
            ),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns + 1):
            for name, (way, count) in ways.items():
                started = time.perf_counter()
                way()
                if turn:  # the first makes connections and pages
                    found[name].append((time.perf_counter() - started) * 1000 / count)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1000, help="small ones in a turn")
    parser.add_argument("--large-mib", type=int, default=256, help="each way")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    found = measure(options.calls, options.large_mib, options.turns)
    for name, milliseconds in found.items():
        print(f"{name:32} {milliseconds:10.3f} ms a call")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
