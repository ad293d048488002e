"""What a slow line costs a suite: python -m benchmarks.slow_line [--rows N] [--runs N].

Cases of 64 MiB each are judged by an embedded CPU server, over loopback and over a line of 4 MB/s
each way with a round trip of 30 ms, in turns. Printed are the seconds of both, their ratio, and the
bytes that went over either. Verdicts cross the line, tensors do not, so the ratio should be near 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import opferry
from opferry.embedded import EmbeddedServer
from opferry.validation import Case, CaseStatus, read_cases
from tests.support.counting_proxy import CountingProxy, counting_proxy
from tests.support.suite_runs import SLOW_LINE, write_large_rows


def seconds_and_bytes(cases: Sequence[Case], proxy: CountingProxy) -> tuple[float, int]:
    """Return how long a run takes over a line, and what it carries."""
    with opferry.connect(proxy.address) as client:
        client.server_info()
        started_s = time.monotonic()
        bytes_before = proxy.up_bytes + proxy.down_bytes
        statuses = {result.status for result in client.validate_cases(cases)}
        took_s = time.monotonic() - started_s
    assert statuses == {CaseStatus.PASS}, statuses
    return took_s, proxy.up_bytes + proxy.down_bytes - bytes_before


def measure(cases: Sequence[Case], runs: int) -> dict[str, float]:
    """Judge the cases over both lines in turns; return medians."""
    near_s, far_s = [], []
    near_bytes, far_bytes = [], []
    server = EmbeddedServer()
    try:
        with (
            counting_proxy(server.address) as near,
            counting_proxy(server.address, **SLOW_LINE) as far,
        ):
            seconds_and_bytes(cases[:4], near)  # judges start with the first
            for _ in range(runs):
                for proxy, seconds, count in ((near, near_s, near_bytes), (far, far_s, far_bytes)):
                    took_s, carried = seconds_and_bytes(cases, proxy)
                    seconds.append(took_s)
                    count.append(carried)
    finally:
        server.stop()
    return {
        "rows": len(cases),
        "loopback_seconds": statistics.median(near_s),
        "slow_line_seconds": statistics.median(far_s),
        "ratio": statistics.median(far / near for near, far in zip(near_s, far_s, strict=True)),
        "loopback_bytes": statistics.median(near_bytes),
        "slow_line_bytes": statistics.median(far_bytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=60, help="default: 60")
    parser.add_argument("--runs", type=int, default=3, help="runs over each line, default: 3")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = read_cases(write_large_rows(Path(folder) / "cases.csv", options.rows)).cases
        found = measure(cases, options.runs)
    for name, value in found.items():
        print(f"{name:18} {value:,.2f}" if isinstance(value, float) else f"{name:18} {value:,}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
