"""What a call costs: opferry against a bare grpcio unary echo of the same bytes, in one run.

    python benchmarks/calls.py [--rounds N] [--json FILE]

Contenders are interleaved; the figures are medians, and only the ratios mean anything on a shared
machine. The echo is stateless and has no worker behind it; opferry runs the real operator (float32,
without query and key), so its time includes the arithmetic, which is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import opferry
from opferry.embedded import embedded_server

SIZES = {"1 KiB": (1, 1), "64 KiB": (64, 1), "1 MiB": (1024, 1), "16 MiB": (1024, 16)}
"""Tokens and heads, so that the two gradients together have that size with D = 128."""

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def main() -> None:
    """Measure, print a table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with embedded_server() as server, opferry.connect(server.address) as client:
        echo = Echo(multiprocessing.get_context("spawn"))
        rows = [measure(name, client, echo, options.rounds) for name in SIZES]
        echo.close()
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


def measure(name: str, client: opferry.Client, echo: Echo, rounds: int) -> dict[str, Any]:
    """Return the medians of one size."""
    tokens, heads = SIZES[name]
    gradient = np.ones((tokens, heads, 128), np.float32)
    cos = np.ones((tokens, 1, 128), np.float32)
    payload = bytes(2 * gradient.nbytes)
    kernel: list[float] = []

    def call() -> None:
        result = client.apply_rotary_pos_emb_grad(gradient, gradient, cos, cos, layout=4)
        kernel.append(result.execution.timings.kernel_ns[0] / 1e6)

    contenders: dict[str, Callable[[], object]] = {"opferry": call, "echo": lambda: echo(payload)}
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    for turn in range(rounds + 2):
        for contender, act in contenders.items():
            started = time.perf_counter()
            act()
            if turn >= 2:  # the first are for warming up
                times[contender].append((time.perf_counter() - started) * 1e3)
    medians = {contender: statistics.median(values) for contender, values in times.items()}
    return {
        "size": name,
        "opferry_ms": medians["opferry"],
        "kernel_ms": statistics.median(kernel),
        "grpcio_unary_ms": medians["echo"],
        "ratio": medians["opferry"] / medians["echo"],
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="one call, there and back (medians)", title_justify="left")
    for heading in ("each way", "opferry ms", "of it kernel ms", "grpcio unary echo ms", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = [f"{row[key]:.2f}" for key in list(row)[1:]]
        table.add_row(row["size"], *figures)
    Console(width=100).print(table)


class Echo:
    """A bare grpcio server in a process of its own that returns what it gets."""

    def __init__(self, context: Any) -> None:
        """Start the process."""
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve_echo, args=(theirs,), daemon=True)
        self._process.start()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{ours.recv()}", UNLIMITED)
        self._method = self._channel.unary_unary("/echo.Echo/Call")

    def __call__(self, payload: bytes) -> bytes:
        """Send bytes and get them back."""
        reply: bytes = self._method(payload)
        return reply

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.terminate()
        self._process.join()


def _serve_echo(pipe: Any) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(4), options=UNLIMITED)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("echo.Echo", {"Call": handler}),)
    )
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
