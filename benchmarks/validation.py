"""What validating a suite costs: python -m benchmarks.validation [--sample N] [--loop].

A generated suite is judged by an embedded CPU server. Printed are cases per second, where the
processors' time goes, the bytes of a case on the socket in both directions (handshake included),
and the peak memory of client and server; with --loop also what a plain loop in one process does
with the same rows, and the ratio of both. Times on a shared machine say little; shares, bytes and
ratios do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

import opferry
from benchmarks.plain_loop import run_plain_loop, spread
from opferry.embedded import EmbeddedServer
from opferry.validation import Case, CaseStatus, read_cases
from opferry.validation.generation import generated_rows, write_rows
from tests.support.counting_proxy import counting_proxy

STEPS = ("generate_ns", "execute_ns", "golden_ns", "compare_ns")
"""What a case's time is made of, in its `WallTimes`."""

LOOK_S = 0.5
"""How often the server's memory is looked at, in seconds."""

WEIGHED_COUNT = 1_000
"""The bytes and the memory are of so many of the rows, spread evenly, in a run of their own: what
counts them takes time."""


class MemoryWatch:
    """Looks at the proportional memory of a process and its children until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            total = 0
            for process in (self._process, *self._process.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)


def measure(cases: Sequence[Case], repeat: int) -> dict[str, float]:
    """Validate a suite and return the figures."""
    sizes = sorted(sum(spec.data_bytes for spec in case.inputs.values()) for case in cases)
    statuses: Counter[CaseStatus] = Counter()
    spent: Counter[str] = Counter()
    server = EmbeddedServer()
    try:
        started_s = time.monotonic()
        with opferry.connect(server.address) as client:
            for result in client.validate_cases(cases, repeat=repeat):
                statuses[result.status] += 1
                spent.update({name: getattr(result.times, name) for name in STEPS})
        wall_s = time.monotonic() - started_s
    finally:
        server.stop()
    assert set(statuses) == {CaseStatus.PASS}, statuses
    cores = len(os.sched_getaffinity(0))
    shares = {name.removesuffix("_ns"): spent[name] / 1e9 / (wall_s * cores) for name in STEPS}
    return {
        "rows": len(cases),
        "median_bytes": sizes[len(sizes) // 2],
        "largest_bytes": sizes[-1],
        "total_gib": sum(sizes) / 2**30,
        "seconds": wall_s,
        "cases_per_second": len(cases) / wall_s,
        **{f"share_{name}": share for name, share in shares.items()},
        "share_rest": 1 - sum(shares.values()),
        "client_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def weigh(cases: Sequence[Case], repeat: int) -> dict[str, float]:
    """Validate a suite with a proxy that counts between, and looks at memory; return both."""
    server = EmbeddedServer()
    try:
        with counting_proxy(server.address) as proxy:
            watch = MemoryWatch(server.pid)
            with opferry.connect(proxy.address) as client:
                for _ in client.validate_cases(cases, repeat=repeat):
                    pass
            watch.stop()
            up_bytes, down_bytes = proxy.up_bytes, proxy.down_bytes
    finally:
        server.stop()
    return {
        "bytes_per_case": (up_bytes + down_bytes) / len(cases),
        "bytes_up_per_case": up_bytes / len(cases),
        "server_peak_mib": watch.peak_bytes / 2**20,
    }


def beside(case_file: Path, sample: int | None, found: dict[str, float]) -> dict[str, float]:
    """Judge the same rows in a plain loop, and return its figures and what opferry is to it."""
    loop = run_plain_loop(case_file, sample)
    seconds = loop.pop("seconds")
    shares = {f"loop_share_{name}": spent / seconds for name, spent in loop.items()}
    rate = found["rows"] / seconds
    return {
        "loop_seconds": seconds,
        "loop_cases_per_second": rate,
        **shares,
        "ratio_to_loop": found["cases_per_second"] / rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, help="default: as many as the level has")
    parser.add_argument("--level", default="L1", help="default: L1")
    parser.add_argument("--sample", type=int, help="only so many of them, spread evenly")
    parser.add_argument("--loop", action="store_true", help="also judge them in a plain loop")
    parser.add_argument("--run", type=int, default=1, help="runs of each case, default: 1")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        case_file = Path(folder) / "suite.csv"
        rows = generated_rows(
            "apply_rotary_pos_emb_grad", level=options.level, row_count=options.rows
        )
        write_rows(case_file, rows, "aclnn")
        cases = read_cases(case_file).cases
        found = measure(spread(cases, options.sample), options.run)
        weighed = min(WEIGHED_COUNT, options.sample or WEIGHED_COUNT)
        found |= weigh(spread(cases, weighed), options.run)
        if options.loop:
            found |= beside(case_file, options.sample, found)
    for name, value in found.items():
        print(f"{name:22} {value:,.3f}" if isinstance(value, float) else f"{name:22} {value:,}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
