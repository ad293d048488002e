"""A server on the benchmarks' backend under load, and what each kind of its processes takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import psutil

import opferry
from benchmarks.peers import ECHO_BACKEND, rotary_inputs
from benchmarks.processes import CONTEXT, MIB, cpu_s, run_callers
from opferry.embedded import EmbeddedServer
from tests.support.processes import pss_bytes, rss_anon_bytes

MOST_CALLER_PROCESSES = 4
"""Callers share so many processes: threads of one would measure its interpreter's lock."""

ROLES = ("front", "workers", "clients")
"""Whose processor time is told apart."""


class Load:
    """A server, and callers that make calls of one size in turns."""

    def __init__(self, workers: int, size: int, callers: int) -> None:
        """Start all processes, and make each caller's first call.

        Args:
            workers: of the server.
            size: bytes each way of a call.
            callers: how many calls are under way at a time; a multiple of the processes they share.
        """
        self.size = size
        self._server = EmbeddedServer(backend=ECHO_BACKEND, workers=workers)
        processes = min(callers, MOST_CALLER_PROCESSES)
        self._pipes, self._callers = [], []
        for _ in range(processes):
            ours, theirs = CONTEXT.Pipe()
            arguments = ("opferry", self._server.address, size, callers // processes, theirs)
            process = CONTEXT.Process(target=run_callers, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._callers.append(process)
        for pipe in self._pipes:
            pipe.recv()
        front = psutil.Process(self._server.pid)
        self._roles = {
            "front": [front],
            "workers": front.children(),
            "clients": [psutil.Process(process.pid) for process in self._callers],
        }
        self._turns: list[dict[str, Any]] = []

    def turn(self, seconds: float) -> None:
        """Make calls for some seconds, at least one for each caller."""
        before = self._cpu_s()
        started = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(seconds)
        latencies = [latency for pipe in self._pipes for latency in pipe.recv()["latencies_ms"]]
        wall_s = time.perf_counter() - started
        after = self._cpu_s()
        cores = {role: (after[role] - before[role]) / wall_s for role in ROLES}
        self._turns.append({"latencies_ms": latencies, "wall_s": wall_s, "cores": cores})

    def forget(self) -> None:
        """Leave the turns so far out of the figures."""
        self._turns.clear()

    def figures(self) -> dict[str, float]:
        """Return the medians over all turns: calls, MiB each way, and processors in use."""
        latencies = [latency for turn in self._turns for latency in turn["latencies_ms"]]
        rate = statistics.median(len(turn["latencies_ms"]) / turn["wall_s"] for turn in self._turns)
        return {
            "calls": len(latencies),
            "p50_ms": statistics.median(latencies),
            "ms_per_mib": statistics.median(latencies) / (self.size / MIB),
            "calls_per_s": rate,
            "mib_per_s": rate * self.size / MIB,
            **{
                f"{role}_cores": statistics.median(turn["cores"][role] for turn in self._turns)
                for role in ROLES
            },
        }

    def close(self) -> None:
        """End all processes."""
        for process in self._callers:
            process.terminate()
            process.join()
        self._server.stop()

    def _cpu_s(self) -> dict[str, float]:
        return {role: sum(map(cpu_s, found)) for role, found in self._roles.items()}


def steady(count: int, block: int, size: int) -> list[dict[str, float]]:
    """Make calls one after the other, and return a row for each block of them.

    Args:
        count: how many calls; whole blocks of them are made.
        block: how many calls a row is about.
        size: bytes each way of a call.

    Returns:
        Calls so far, calls per second of the block, and what the front and the client hold after
        it: proportional and anonymous memory, in bytes.
    """
    server = EmbeddedServer(backend=ECHO_BACKEND)
    ours, theirs = CONTEXT.Pipe()
    client = CONTEXT.Process(target=_run_blocks, args=(server.address, size, theirs), daemon=True)
    client.start()
    pids = {"front": server.pid, "client": client.pid}
    rows = []
    try:
        for done in range(block, count + 1, block):
            ours.send(block)
            row = {"calls": done, "calls_per_s": block / ours.recv()}
            for name, pid in pids.items():
                row[f"{name}_pss_bytes"] = pss_bytes(pid)
                row[f"{name}_anonymous_bytes"] = rss_anon_bytes(pid)
            rows.append(row)
    finally:
        client.terminate()
        client.join()
        server.stop()
    return rows


def _run_blocks(address: str, size: int, pipe: Any) -> None:
    gradient, cos = rotary_inputs(size)
    with opferry.connect(address) as client:
        while True:
            count = pipe.recv()
            started = time.perf_counter()
            for _ in range(count):
                client.apply_rotary_pos_emb_grad(gradient, gradient, cos, cos, layout=4)
            pipe.send(time.perf_counter() - started)
