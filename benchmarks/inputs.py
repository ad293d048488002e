"""How fast inputs are made, beside numpy's own generator in the same run, on one core.

    python benchmarks/inputs.py [--mib 64] [--rounds 5]

For each dtype and distribution the best of the rounds, in MiB of tensor per second. numpy's figure
is what one would write without an exact recipe: Generator(Philox).random or .standard_normal in
float32, scaled to the range in place, and cast to the 16-bit dtypes. The rounds of both alternate,
so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import Distribution, Recipe, ValueRange, generate

MIB = 1024 * 1024
LOW, HIGH = -2.0, 2.0


def by_numpy(dtype: DType, distribution: Distribution, count: int) -> Any:
    random = np.random.Generator(np.random.Philox(key=1))
    if distribution is Distribution.UNIFORM:
        values = random.random(count, np.float32)
        values *= np.float32(HIGH - LOW)
        values += np.float32(LOW)
    else:
        values = random.standard_normal(count, np.float32)
        values *= np.float32((HIGH - LOW) / 8)
        values += np.float32((HIGH + LOW) / 2)
    return values.astype(dtype.numpy, copy=False)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the tensor")
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    print(f"numpy {np.__version__}, tensors of {words.mib} MiB, best of {words.rounds}, MiB/s")
    print(f"{'':18}  recipe  two threads  numpy")
    for distribution in Distribution:
        for dtype in DType:
            count = words.mib * MIB // dtype.itemsize
            recipe = Recipe(TensorSpec(dtype, (count,)), ValueRange(LOW, HIGH), distribution)
            works = (
                lambda r=recipe: generate(r),
                lambda r=recipe: generate(r, threads=2),
                lambda d=dtype, how=distribution, n=count: by_numpy(d, how, n),
            )
            rounds = [[seconds(work) for work in works] for _ in range(words.rounds)]
            one, two, peer = (words.mib / min(times) for times in zip(*rounds, strict=True))
            name = f"{dtype.value} {distribution.value}"
            print(f"{name:18}  {one:6.0f}  {two:11.0f}  {peer:5.0f}")


if __name__ == "__main__":
    main()
