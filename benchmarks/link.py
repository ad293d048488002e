"""What a call costs over a long link: python -m benchmarks.link [--mib N] [--json FILE].

Two network namespaces, joined by a line of 1 Gbit/s with a round trip of 30 ms. Raw TCP, with one
connection and buffers that are made once, and opferry, with the backend that returns its inputs,
take turns to send the same bytes there and get them back: the link carries one direction after the
other. The time of the link itself is that of raw TCP in the same run; it is also computed, as bytes
by rate in both directions and one round trip. It takes root, as namespaces and TUN devices do.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import ECHO_BACKEND, OpFerry, Peer, RawTcp
from benchmarks.processes import MIB, let_workers_import_benchmarks
from tests.support.shaped_link import ADDRESSES, Hosts, shaped_link

CONTENDERS: dict[str, Callable[[], Peer]] = {
    "raw TCP": lambda: RawTcp(ADDRESSES[0]),
    "opferry": lambda: OpFerry(ECHO_BACKEND, ADDRESSES[0]),
}

_calls: dict[str, Callable[[], object]] = {}
"""At the near host: the call of each contender."""


def _serve(name: str) -> str:
    """Start a contender's server at the far host, and return its address."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=CONTENDERS[name]().serve, args=(told.put,), daemon=True).start()
    return told.get()


def _connect(name: str, address: str, size: int) -> None:
    (_calls[name],) = CONTENDERS[name]().calls(address, size, 1)


def _call(name: str) -> float:
    """Make a call from the near host, and return how long it took, in seconds."""
    started = time.perf_counter()
    _calls[name]()
    return time.perf_counter() - started


def _congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def measure(hosts: Hosts, size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender's calls; the first, which does not count, is left out.

    Args:
        hosts: the two ends of the link.
        size: bytes each way of a call.
        rounds: how many calls of each.
    """
    for name in CONTENDERS:
        address = hosts.far.submit(_serve, name).result()
        hosts.near.submit(_connect, name, address, size).result()
    found: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for turn in range(rounds + 1):
        for name, times in found.items():
            seconds = hosts.near.submit(_call, name).result()
            if turn:
                times.append(seconds)
    return found


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="each way; default: 256")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--mbit", type=float, default=1000, help="a second; default: 1000")
    parser.add_argument("--round-trip-ms", type=float, default=30, help="default: 30")
    parser.add_argument("--buffer-mib", type=int, help="TCP's largest; default: the machine's")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    size, rate, round_trip_s = options.mib * MIB, options.mbit * 1e6, options.round_trip_ms / 1000
    buffer_bytes = None if options.buffer_mib is None else options.buffer_mib * MIB
    try:
        with shaped_link(rate, round_trip_s, buffer_bytes=buffer_bytes) as hosts:
            congestion_control = hosts.near.submit(_congestion_control).result()
            times = measure(hosts, size, options.rounds)
    except OSError as error:
        sys.exit(f"benchmarks.link: {error}")
    medians = {name: statistics.median(found) for name, found in times.items()}
    computed_s = 2 * size * 8 / rate + round_trip_s
    figures: dict[str, Any] = {
        "bytes": size,
        "bits_per_s": rate,
        "round_trip_s": round_trip_s,
        "buffer_bytes": buffer_bytes,
        "congestion_control": congestion_control,
        "seconds": times,
        "median_s": medians,
        "computed_s": computed_s,
        "ratio_to_raw_tcp": medians["opferry"] / medians["raw TCP"],
        "ratio_to_computed": medians["opferry"] / computed_s,
    }
    print(f"{options.mib} MiB each way, {options.mbit:g} Mbit/s, {options.round_trip_ms:g} ms")
    for name, found in (*medians.items(), ("computed", computed_s)):
        print(f"{name:10} {found:8.3f} s  {medians['opferry'] / found:6.2f} x")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    let_workers_import_benchmarks()
    main()
