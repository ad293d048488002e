"""`make soak`: python -m tests.soak [--requests N] [--seed N] [--call-s N]."""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.long_call import long_call
from tests.soak.run import assert_steady, soak


def main() -> None:
    """Run a soak and print what it came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="default: 5000")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--call-s", type=float, default=360.0, help="the long call beside it, default: 360"
    )
    options = parser.parse_args()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        ThreadPoolExecutor(1) as beside,
    ):
        long = beside.submit(long_call, Path(other), options.call_s)
        first_at = min(500, options.requests // 2)
        outcome = soak(Path(folder), options.requests, seed=options.seed, first_at=first_at)
        long.result()
    for kind, count in sorted(outcome.kinds.items()):
        print(f"{count:6} {kind}")
    print(f"{outcome.requests} requests, {outcome.restarts} workers replaced")
    print(f"front after {first_at}: {outcome.first}")
    print(f"front at the end: {outcome.last}")
    print(f"one call of {options.call_s:g} s, over one connection")
    print(f"{time.monotonic() - started:.0f} s")
    assert_steady(outcome)


if __name__ == "__main__":
    main()
