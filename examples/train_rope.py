"""Trains a small attention block with its rotary embedding on the server, and once without.

The task is made up: each sequence has a marked position, and the value a few places before it is to
be told. Only positions say where that is, so the loss falls by what rotary embedding adds. A server
may round at other places than torch does, and the two runs then drift apart by a little.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

import opferry.torch
from opferry_server.testing import running_server

BATCH, LENGTH, HEADS, WIDTH, VALUES, BACK = 64, 16, 4, 16, 8, 3
MODEL = HEADS * WIDTH

Rope = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def local_rope(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate (B, S, N, D) in torch itself, by the published formula."""

    def one(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return one(query), one(key)


class Block(nn.Module):
    """One attention layer with rotary embedding."""

    def __init__(self, rope: Rope) -> None:
        """Use *rope* for query and key."""
        super().__init__()
        self.rope = rope
        self.embedding = nn.Embedding(2 * VALUES, MODEL)
        self.attention_in = nn.Linear(MODEL, 3 * MODEL)
        self.head = nn.Linear(MODEL, VALUES)
        angles = torch.outer(torch.arange(LENGTH), 100.0 ** (-torch.arange(0, 1, 2 / WIDTH)))
        angles = torch.cat((angles, angles), -1)[None, :, None]
        # the angles are learned too, so that cos and sin have gradients
        self.cos, self.sin = nn.Parameter(angles.cos()), nn.Parameter(angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what the block says at each position, (B, S, VALUES)."""
        hidden = self.attention_in(self.embedding(tokens))
        query, key, value = hidden.unflatten(-1, (3, HEADS, WIDTH)).unbind(-3)
        query, key = self.rope(query, key, self.cos, self.sin)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(mixed.transpose(1, 2).flatten(-2))


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the marked position of each sequence, and what is to be told there."""
    values = torch.randint(VALUES, (BATCH, LENGTH), generator=generator)
    marked = torch.randint(BACK, LENGTH, (BATCH,), generator=generator)
    rows = torch.arange(BATCH)
    told = values[rows, marked - BACK]
    tokens = values.clone()
    tokens[rows, marked] += VALUES
    return tokens, marked, told


def train(rope: Rope, steps: int, seed: int = 0) -> list[float]:
    """Train a new block and return the loss of each step."""
    torch.manual_seed(seed)
    block = Block(rope)
    optimizer = torch.optim.Adam(block.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        tokens, marked, told = batch(generator)
        said = block(tokens)[torch.arange(BATCH), marked]
        loss = nn.functional.cross_entropy(said, told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def positive(word: str) -> int:
    """Return a number of at least 1."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main() -> None:
    """Train on the server and without, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--target",
        default=os.environ.get("OPFERRY_TARGET"),
        help="host:port; default: what OPFERRY_TARGET says, or a CPU server of its own",
    )
    parser.add_argument("--steps", type=positive, default=50, help="default: %(default)s")
    options = parser.parse_args()
    server = nullcontext(options.target) if options.target else running_server()
    with server as target, opferry.torch.using(target):
        remote = train(opferry.torch.apply_rotary_pos_emb, options.steps)
    local = train(local_rope, options.steps)
    print("step     remote      local  difference")
    for step in sorted({*range(0, options.steps, 10), options.steps - 1}):
        apart = remote[step] - local[step]
        print(f"{step:4} {remote[step]:10.6f} {local[step]:10.6f}  {apart:10.1e}")
    apart = max(abs(one - other) for one, other in zip(remote, local, strict=True))
    print(f"loss {remote[0]:.3f} -> {remote[-1]:.3f}; never further apart than {apart:.1e}")


if __name__ == "__main__":
    main()
