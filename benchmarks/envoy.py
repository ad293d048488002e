"""What Envoy and TLS cost: python -m benchmarks.envoy [--large-mib N] [--json FILE].

One server with the backend that returns its inputs, on loopback: called itself, and through an
Envoy with the configuration of deploy/envoy; both in the clear, and with TLS as in a farm (mutual
TLS with the server, TLS and a token in front of Envoy). The four take turns in one run. Client,
Envoy and server share this machine's processors: ratios are upper bounds of what a farm sees.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import opferry
from benchmarks.peers import ECHO_BACKEND, rotary_inputs
from benchmarks.processes import KIB, MIB, let_workers_import_benchmarks
from tests.farm.running import Farm

MIXED_BYTES = 16 * MIB
CALLERS = 8


def clients(stack: ExitStack, folder: Path) -> dict[str, opferry.Client]:
    """Start everything, and return a client for each way, by name."""
    found: dict[str, opferry.Client] = {}
    for tls in (False, True):
        place = folder / ("tls" if tls else "clear")
        place.mkdir()
        farm = Farm(place, 1, tls=tls, backend=ECHO_BACKEND, limits={"unary_bytes": 3 * MIB})
        stack.callback(farm.close)
        words = ", TLS" if tls else ""
        direct: dict[str, Any] = {} if farm.access is None else farm.access.direct()
        found[f"direct{words}"] = stack.enter_context(
            opferry.connect(farm.servers[0].address, shared_memory=False, **direct)
        )
        found[f"Envoy{words}"] = stack.enter_context(farm.client())
    return found


def caller(client: opferry.Client, size: int) -> Callable[[], object]:
    """Return a call with *size* bytes each way."""
    gradient, cos = rotary_inputs(size)
    return lambda: client.apply_rotary_pos_emb_grad(gradient, gradient, cos, cos, layout=4)


def latencies_ms(call: Callable[[], object], seconds: float) -> list[float]:
    """Return how long each call took, one after the other for some seconds."""
    found: list[float] = []
    until_s = time.perf_counter() + seconds
    while not found or time.perf_counter() < until_s:
        started_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - started_s) * 1000)
    return found


def measure(large_mib: int, seconds: float, turns: int) -> dict[str, dict[str, float]]:
    """Return for each way its figures by name.

    Args:
        large_mib: the size of the largest calls.
        seconds: of each turn of each figure.
        turns: how many there are; one more comes before, and does not count.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = clients(stack, folder)
        pool = stack.enter_context(ThreadPoolExecutor(CALLERS))
        small: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        moved: dict[tuple[str, int], list[float]] = {}
        for turn in range(turns + 1):
            for name, client in ways.items():
                call = caller(client, KIB)
                found = latencies_ms(call, seconds)
                many = list(pool.map(latencies_ms, [call] * CALLERS, [seconds] * CALLERS))
                if turn:
                    small[name] += found
                    rates[name].append(sum(map(len, many)) / seconds)
                for size in (MIXED_BYTES, large_mib * MIB):
                    found = latencies_ms(caller(client, size), seconds)
                    if turn:
                        moved.setdefault((name, size), []).extend(found)
    return {
        name: {
            "1 KiB, p50 ms": statistics.median(small[name]),
            "1 KiB, p99 ms": statistics.quantiles(small[name], n=100)[98],
            f"1 KiB, calls/s by {CALLERS}": statistics.median(rates[name]),
            **{
                f"{size // MIB} MiB, MiB/s": size
                / MIB
                / statistics.median(moved[name, size])
                * 1000
                for size in (MIXED_BYTES, large_mib * MIB)
            },
        }
        for name in ways
    }


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large-mib", type=int, default=256, help="each way")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn of each figure")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    let_workers_import_benchmarks()
    found = measure(options.large_mib, options.seconds, options.turns)
    figures = list(next(iter(found.values())))
    print(" " * 24 + "".join(f"{name:>14}" for name in found))
    for figure in figures:
        print(f"{figure:24}" + "".join(f"{found[name][figure]:14.2f}" for name in found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
