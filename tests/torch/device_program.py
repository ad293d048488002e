"""A device in Python alone, behind torch's key for devices that it does not know itself.

It can do what a device must: make tensors, and copy from and to the CPU. Any computation on it
fails, so what comes out right was computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import opferry.torch
from opferry.errors import RequestError
from tests.support.servers import embedded
from tests.torch.tensors import rotate

NAME = "elsewhere"
_setup_privateuseone_for_python_backend(NAME)
ATEN = torch.library.Library("aten", "IMPL")
COPIES: list[str] = []


class ElsewhereTensor(torch.Tensor):
    """A tensor whose data torch does not see."""

    hidden: torch.Tensor

    @staticmethod
    def of(hidden: torch.Tensor) -> ElsewhereTensor:
        made: Any = torch._C._acc.create_empty_tensor(hidden.shape, hidden.dtype)
        made.__class__ = ElsewhereTensor
        made.hidden = hidden
        return made  # type: ignore[no-any-return]


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, **others: Any
) -> ElsewhereTensor:
    return ElsewhereTensor.of(torch.empty_strided(size, stride, dtype=dtype))


def copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    COPIES.append(f"{source.device.type} to {target.device.type}")
    plain = [
        each.hidden if isinstance(each, ElsewhereTensor) else each for each in (source, target)
    ]
    plain[1].copy_(plain[0])
    return target


def detach(tensor: ElsewhereTensor) -> ElsewhereTensor:
    return ElsewhereTensor.of(tensor.hidden)


for name, function in (
    ("empty_strided", empty_strided),
    ("_copy_from", copy_from),
    ("detach", detach),
):
    ATEN.impl(name, function, "PrivateUse1")


def check(found: Sequence[torch.Tensor | None]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours is not None
        assert ours.device.type == NAME, ours.device
        assert torch.equal(ours.cpu(), theirs)


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    here = [torch.randn(2, 3, n, 8, generator=generator) for n in (4, 2, 1, 1)]
    here[2:] = [table[:1] for table in here[2:]]
    there = [tensor.to(NAME) for tensor in here]
    COPIES.clear()
    with embedded() as server:
        with opferry.torch.using(server.address):
            wanted = opferry.torch.apply_rotary_pos_emb_grad(*here, query=here[0], key=here[1])
            outputs = opferry.torch.apply_rotary_pos_emb(*there)
            assert [f"{NAME} to cpu"] * 4 + [f"cpu to {NAME}"] * 2 == COPIES, COPIES
            for ours, theirs in zip(outputs, rotate(*here), strict=True):
                assert ours.device.type == NAME, ours.device
                torch.testing.assert_close(ours.cpu(), theirs)
            check(opferry.torch.apply_rotary_pos_emb_grad(*there, query=there[0], key=there[1]))
            try:
                opferry.torch.apply_rotary_pos_emb(there[0], here[1], *there[2:])
            except RequestError as error:
                print(error.message)
            leaves = [tensor.requires_grad_() for tensor in there]
            outputs = opferry.torch.apply_rotary_pos_emb(*leaves)
        weights = [tensor.to(NAME) for tensor in here[:2]]
        # torch has a thread of its own for the device, which knows no block
        check(torch.autograd.grad(outputs, leaves, weights))
        print("done")
