"""What the CPU reference costs against its peers: python -m benchmarks.reference [--rounds N].

ApplyRotaryPosEmbGrad with q = k = (2, 2048, 16, 128): opferry's compiled reference with one thread
and two, its blocked one, plain numpy on whole arrays, torch eager (float32 arithmetic, as all of
them) and memcpy of the same bytes, which nothing can beat that reads every input and writes every
output. All take turns in one process; a figure is the median. Times on a shared machine say
little; ratios do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.whole import whole
from opferry.core.dtypes import DType
from opferry.operators._rotary_grad_compiled import FusedRotaryGrad
from opferry.operators._rotary_grad_reference import rotary_grad
from opferry.operators.compiled import Threads

Array = NDArray[Any]

BATCH, LENGTH, HEADS, WIDTH = 2, 2048, 16, 128

COPY_BYTES = 2**20
"""What a thread copies at a time."""


def call(dtype: DType, optional: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return inputs and outputs, (B, S, N, D)."""
    random = np.random.default_rng(0)
    large, table = (BATCH, LENGTH, HEADS, WIDTH), (1, LENGTH, 1, WIDTH)
    shapes = {"grad_query_embed": large, "grad_key_embed": large, "cos": table, "sin": table}
    outputs = {"grad_query": large, "grad_key": large}
    if optional:
        shapes |= {"query": large, "key": large}
        outputs |= {"grad_cos": table, "grad_sin": table}
    inputs = {
        name: random.standard_normal(shape, np.float32).astype(dtype.numpy)
        for name, shape in shapes.items()
    }
    return inputs, {name: np.zeros(shape, dtype.numpy) for name, shape in outputs.items()}


def contenders(dtype: DType, optional: bool) -> dict[str, Callable[[], Any]]:
    """Return what is measured, by name."""
    inputs, outputs = call(dtype, optional)
    kind = {DType.FLOAT32: torch.float32, DType.FLOAT16: torch.float16}.get(dtype, torch.bfloat16)
    tensors = {
        name: torch.from_numpy(array.astype(np.float32)).to(kind) for name, array in inputs.items()
    }
    one, two, threads = FusedRotaryGrad(1), FusedRotaryGrad(2), Threads(2)
    count = sum(array.nbytes for array in (*inputs.values(), *outputs.values())) // 2
    source, target = np.ones(count, np.uint8), np.zeros(count, np.uint8)

    def numpy_whole() -> list[Any]:
        return whole(
            inputs,
            np.concatenate,
            lambda array: array.astype(np.float32, copy=False),
            lambda array: array.astype(dtype.numpy, copy=False),
            lambda array: array.sum(axis=(0, 2), keepdims=True),
        )

    def torch_eager(count: int) -> list[Any]:
        torch.set_num_threads(count)
        return whole(
            tensors,
            torch.cat,
            lambda tensor: tensor.float(),
            lambda tensor: tensor.to(kind),
            lambda tensor: tensor.sum(dim=(0, 2), keepdim=True),
        )

    def copy(first: int, last: int) -> None:
        target[first:last] = source[first:last]

    return {
        "opferry, 1 thread": lambda: one(inputs, outputs),
        "opferry, 2 threads": lambda: two(inputs, outputs),
        "opferry, blocked": lambda: rotary_grad(inputs, outputs, np.float32),
        "numpy, whole": numpy_whole,
        "torch, 1 thread": lambda: torch_eager(1),
        "torch, 2 threads": lambda: torch_eager(2),
        "memcpy, 1 thread": lambda: copy(0, count),
        "memcpy, 2 threads": lambda: threads.run(copy, count, COPY_BYTES),
    }


def extra_mib(run: Callable[[], Any]) -> float:
    """Return how much memory this process had at the most, over what it had before, in MiB."""

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = status("VmRSS:")
    run()
    return max(0.0, status("VmHWM:") - before)


def measure(dtype: DType, optional: bool, rounds: int) -> dict[str, float]:
    """Return the medians in milliseconds, and the extra memory of two threads in MiB."""
    found = contenders(dtype, optional)
    times: dict[str, list[float]] = {name: [] for name in found}
    for run in found.values():
        run()
    for _ in range(rounds):
        for name, run in found.items():
            started = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - started) * 1000)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "extra MiB": extra_mib(found["opferry, 2 threads"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    rows = {}
    for dtype in DType:
        for optional in (False, True):
            title = f"{dtype.value}{', with grad_cos and grad_sin' if optional else ''}"
            rows[title] = found = measure(dtype, optional, options.rounds)
            ours = found["opferry, 2 threads"]
            print(title)
            for name, value in found.items():
                ratio = "" if name == "extra MiB" else f"  {value / ours:6.2f}"
                print(f"  {name:20} {value:8.2f}{ratio}")
    print("milliseconds, and each as a multiple of opferry with 2 threads")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
