"""`make soak`: python -m tests.soak [--requests N] [--seed N]."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.soak.run import assert_steady, soak


def main() -> None:
    """Run a soak and print what it came to."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="default: 5000")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        first_at = min(500, options.requests // 2)
        outcome = soak(Path(folder), options.requests, seed=options.seed, first_at=first_at)
    for kind, count in sorted(outcome.kinds.items()):
        print(f"{count:6} {kind}")
    print(f"{outcome.requests} requests, {outcome.restarts} workers replaced")
    print(f"front after {first_at}: {outcome.first}")
    print(f"front at the end: {outcome.last}")
    print(f"{time.monotonic() - started:.0f} s")
    assert_steady(outcome)


if __name__ == "__main__":
    main()
