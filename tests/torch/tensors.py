"""Tensors for calls of the operators, in every kind of view, and plain formulas in torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import torch
from numpy.typing import NDArray

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = {"BSND": 1, "SBND": 2, "BNSD": 3, "TND": 4}
GRAD_LAYOUTS = ("BSND", "SBND", "TND")


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _offset(tensor: torch.Tensor) -> torch.Tensor:
    room = torch.zeros(tensor.numel() + 7, dtype=tensor.dtype)
    room[7:] = tensor.reshape(-1)
    return room[7:].view(tensor.shape)


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    """Half of a wider tensor's last axis, as what is rotated of a partial embedding."""
    return torch.cat((tensor, tensor), -1)[..., : tensor.shape[-1]]


def _sparse(tensor: torch.Tensor) -> torch.Tensor:
    """A fifth of a wider tensor, from its middle."""
    return torch.cat((tensor,) * 5, -1)[..., tensor.shape[-1] : 2 * tensor.shape[-1]]


def _stepped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.repeat_interleave(2, 0)[::2]


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "transposed": _transposed,
    "offset": _offset,
    "sliced": _sliced,
    "sparse": _sparse,
    "stepped": _stepped,
    "expanded": _expanded,
    "negated": lambda tensor: torch._neg_view(-tensor),
}


def shape(layout: str, **sizes: int) -> tuple[int, ...]:
    """Return a shape by the sizes of its axes."""
    return tuple(sizes[axis] for axis in layout)


def draw(seed: int, *, grad: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any], set[Any]]:
    """Return the inputs and attributes of a call, and which dtype, layout and views they have."""
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    layout = choose.choice(GRAD_LAYOUTS if grad else tuple(LAYOUTS))
    dtype = choose.choice(DTYPES)
    mode = "half" if grad else choose.choice(("half", "interleave", "quarter"))
    sizes = {axis: choose.randint(1, 4) for axis in "BST"}
    multiple = 4 if mode == "quarter" else 2
    width = multiple * choose.randint(1, 16)
    table = width if grad else multiple * choose.randint(1, width // multiple)
    heads = [choose.randint(1, 5) for _ in range(2)]
    query, key = (shape(layout, **sizes, N=count, D=width) for count in heads)
    batches = choose.choice((1, sizes["B"]))
    cos = shape(layout, **{**sizes, "B": batches}, N=1, D=table)
    used: set[Any] = {dtype, layout, mode}

    def tensor(extents: tuple[int, ...]) -> torch.Tensor:
        view = choose.choice(tuple(VIEWS))
        used.add(view)
        return VIEWS[view](torch.randn(extents, generator=generator).to(dtype))

    if not grad:
        shapes = {"query": query, "key": key, "cos": cos, "sin": cos}
        tensors = {name: tensor(extents) for name, extents in shapes.items()}
        return tensors, {"layout": layout, "rotary_mode": mode}, used
    shapes = {"grad_query_embed": query, "grad_key_embed": key, "cos": cos, "sin": cos}
    if choose.random() < 0.6:
        shapes |= {"query": query, "key": key}
    tensors = {name: tensor(extents) for name, extents in shapes.items()}
    return tensors, {"layout": LAYOUTS[layout]}, used


def packed_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a copy as a contiguous numpy array, through the tensor's bits."""
    bits = tensor.resolve_neg().clone(memory_format=torch.contiguous_format)
    if tensor.dtype is torch.bfloat16:
        return bits.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: NDArray[Any] = bits.numpy()
    return array


def rotate(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The published forward formula of mode half, in plain torch; every layout broadcasts."""
    width = cos.shape[-1]

    def one(tensor: torch.Tensor) -> torch.Tensor:
        part, rest = tensor[..., :width], tensor[..., width:]
        first, second = part.chunk(2, -1)
        turned = part * cos + torch.cat((-second, first), -1) * sin
        return torch.cat((turned, rest), -1)

    return one(query), one(key)
