"""A DataLoader whose workers call the server; its first argument says how they are started."""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset

import opferry.torch
from tests.support.servers import embedded
from tests.torch.tensors import rotate

COUNT, WORKER_S = 8, 40


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = {"query": 16, "key": 2, "cos": 1, "sin": 1}
    return {name: torch.randn(2, 64, n, 64, generator=generator) for name, n in heads.items()}


class Rotated(Dataset[torch.Tensor]):
    """Each item is a query that the server has rotated."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, seed: int) -> torch.Tensor:
        return opferry.torch.apply_rotary_pos_emb(**tensors(seed))[0]


def choose(address: str, worker: int) -> None:
    opferry.torch.use(address)


if __name__ == "__main__":
    start = sys.argv[1]
    with embedded() as server:
        opferry.torch.use(server.address)
        before = [Rotated()[seed] for seed in range(COUNT)]
        loader = DataLoader(
            Rotated(),
            batch_size=None,
            num_workers=2,
            multiprocessing_context=start,
            timeout=WORKER_S,
            # a forked worker has its parent's choice
            worker_init_fn=partial(choose, server.address) if start == "spawn" else None,
        )
        for seed, item in enumerate(loader):
            # the parent goes on calling, while its workers do
            leaf = tensors(seed)["query"].requires_grad_()
            query, _ = opferry.torch.apply_rotary_pos_emb(**{**tensors(seed), "query": leaf})
            query.sum().backward()
            assert leaf.grad is not None
            assert torch.equal(item, before[seed])
            assert torch.equal(item, query.detach())
            torch.testing.assert_close(item, rotate(**tensors(seed))[0])
        print(f"{seed + 1} items")
