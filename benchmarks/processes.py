"""Callers in a process of their own, and what processes cost: for several benchmarks."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from benchmarks.more_peers import ALL_PEERS

KIB, MIB = 2**10, 2**20

CONTEXT = multiprocessing.get_context("spawn")
"""gRPC does not survive a fork."""


def let_workers_import_benchmarks() -> None:
    """Put the root of the checkout on the path of child processes: a worker imports its backend."""
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def run_callers(name: str, address: str, size: int, callers: int, pipe: Any) -> None:
    """Make calls whenever the other end of a pipe asks for it; runs until it is terminated.

    Args:
        name: the contender, one of `ALL_PEERS`.
        address: its server's.
        size: bytes each way of a call.
        callers: how many threads make calls.
        pipe: says "ready"; then takes how many seconds to call, and gives the latencies in
            milliseconds and the wall time in seconds. Each caller makes at least one call.
    """
    calls = ALL_PEERS[name]().calls(address, size, callers)
    pool = ThreadPoolExecutor(callers)

    def work(call: Callable[[], object], until_s: float) -> list[float]:
        latencies = []
        while not latencies or time.perf_counter() < until_s:
            started = time.perf_counter()
            call()
            latencies.append((time.perf_counter() - started) * 1000)
        return latencies

    for call in calls:  # connections, pages, the first thread of everything
        call()
    pipe.send("ready")
    while True:
        seconds = pipe.recv()
        started = time.perf_counter()
        if callers == 1:
            found = [work(calls[0], started + seconds)]
        else:
            found = list(pool.map(work, calls, [started + seconds] * callers))
        wall_s = time.perf_counter() - started
        latencies = [latency for some in found for latency in some]
        pipe.send({"latencies_ms": latencies, "wall_s": wall_s})


def cpu_s(process: psutil.Process) -> float:
    """Return the processor time that a process has taken, user and system, in seconds."""
    return sum(process.cpu_times()[:2])
