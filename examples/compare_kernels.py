"""Compares what the server computes with torch's own results, for a list of shapes, as a table.

Both operators are called through opferry.torch. What is right is the published formula, and torch's
autograd of it, in float64; an output is judged by the standard of `opferry validate`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

import opferry.torch
from opferry import DType
from opferry.validation import Comparison, compare
from opferry_server.testing import running_server

DTYPES = ("float32", "float16", "bfloat16")
SHAPES = ("1x1x1x1x128", "2x128x8x2x128", "4x64x32x8x64", "1x512x16x16x96", "2x33x5x1x256")
OUTPUTS = ("query_out", "key_out", "grad_query", "grad_key", "grad_cos", "grad_sin")


Rope = Callable[..., tuple[Tensor, Tensor]]


class Row(NamedTuple):
    """What came of one shape and dtype."""

    shape: str
    dtype: str
    remote_ms: float
    local_ms: float
    judged: dict[str, Comparison]


def rope(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate in torch itself."""

    def one(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return one(query), one(key)


def inputs(shape: str, dtype: str) -> list[Tensor]:
    """Return query, key, cos and sin of a shape "BxSxNqxNkxD"."""
    try:
        batch, length, query_heads, key_heads, width = map(int, shape.split("x"))
    except ValueError:
        sys.exit(f"--shape is {shape}; give BxSxNqxNkxD, such as 2x128x8x2x128")
    generator = torch.Generator().manual_seed(0)
    axes = ((batch, query_heads), (batch, key_heads), (1, 1), (1, 1))
    return [
        torch.randn(rows, length, heads, width, generator=generator)
        .to(getattr(torch, dtype))
        .requires_grad_()
        for rows, heads in axes
    ]


def both_ways(function: Rope, tensors: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """Return the outputs of a function, and the gradients of its inputs."""
    outputs = function(*tensors)
    return [*outputs, *torch.autograd.grad(outputs, tensors, weights)]


def measured(shape: str, dtype: str) -> Row:
    """Compute a shape on the server and here, and judge the server's outputs."""
    tensors = inputs(shape, dtype)
    weights = [torch.randn_like(tensor) for tensor in tensors[:2]]
    both_ways(opferry.torch.apply_rotary_pos_emb, tensors, weights)  # what comes first is slower
    began = perf_counter()
    found = both_ways(opferry.torch.apply_rotary_pos_emb, tensors, weights)
    remote = perf_counter() - began
    began = perf_counter()
    both_ways(rope, tensors, weights)
    local = perf_counter() - began
    exact = both_ways(
        rope,
        [tensor.detach().double().requires_grad_() for tensor in tensors],
        [weight.double() for weight in weights],
    )
    judged = {
        name: compare(
            # bfloat16 by way of float32, which has all its values: numpy's is not torch's
            ours.detach().float().numpy().astype(DType(dtype).numpy),
            theirs.detach().numpy(),
            dtype=DType(dtype),
        )
        for name, ours, theirs in zip(OUTPUTS, found, exact, strict=True)
    }
    return Row(shape, dtype, remote * 1e3, local * 1e3, judged)


def main() -> int:
    """Print the table; return 0 if all outputs pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--target",
        default=os.environ.get("OPFERRY_TARGET"),
        help="host:port; default: what OPFERRY_TARGET says, or a CPU server of its own",
    )
    parser.add_argument(
        "--shape",
        action="append",
        metavar="BxSxNqxNkxD",
        help=f"may be given often; default: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, help="may be given often; default: all"
    )
    options = parser.parse_args()
    server = nullcontext(options.target) if options.target else running_server()
    names = " ".join(f"{name:>10}" for name in OUTPUTS)
    print("largest absolute error of each output; * does not pass")
    print(f"{'shape':16} {'dtype':9} {names} {'remote ms':>10} {'local ms':>9}")
    all_pass = True
    with server as target, opferry.torch.using(target):
        for shape in options.shape or SHAPES:
            for dtype in options.dtype or DTYPES:
                row = measured(shape, dtype)
                cells = " ".join(
                    f"{each.max_abs_error:9.1e}{' ' if each.passed else '*'}"
                    for each in row.judged.values()
                )
                times = f"{row.remote_ms:10.2f} {row.local_ms:9.2f}"
                print(f"{row.shape:16} {row.dtype:9} {cells} {times}", flush=True)
                all_pass = all_pass and all(each.passed for each in row.judged.values())
    print("all outputs pass" if all_pass else "some outputs do not pass")
    return 0 if all_pass else 1


if __name__ == "__main__":
    sys.exit(main())
