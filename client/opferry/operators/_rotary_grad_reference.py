"""The arithmetic of the rotary backward, in blocks that stay in the processor's cache.

All arrays are views with the axes (B, S, N, D). Sums run in an order that depends on the shapes
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opferry.operators._rotary_blocks import BLOCK_ELEMENTS, Array, blocks


def rotary_grad(inputs: Mapping[str, Array], outputs: Mapping[str, Array], work: Any) -> None:
    """Fill the outputs of ApplyRotaryPosEmbGrad.

    Args:
        inputs: grad_query_embed, grad_key_embed, cos, sin and, for grad_cos and grad_sin, query
            and key; each (B, S, N, D), cos and sin (1 or B, S, 1, D).
        outputs: grad_query, grad_key and, with query and key, grad_cos and grad_sin; written in
            place, rounded to their own dtype.
        work: numpy.float32 or numpy.float64, the type of all arithmetic.
    """
    # Infinities and NaN are ordinary data here, and so are sums that overflow.
    with np.errstate(all="ignore"):
        for gradient, result in (
            ("grad_query_embed", "grad_query"),
            ("grad_key_embed", "grad_key"),
        ):
            _rotate_back(inputs[gradient], inputs["cos"], inputs["sin"], outputs[result], work)
        if "grad_cos" in outputs:
            _sum_products(inputs, outputs["grad_cos"], outputs["grad_sin"], work)


def _rotate_back(gradient: Array, cos: Array, sin: Array, result: Array, work: Any) -> None:
    half = gradient.shape[-1] // 2
    cos_full, sin_full = (np.broadcast_to(a, (gradient.shape[0], *a.shape[1:])) for a in (cos, sin))
    for b, s, n in blocks(gradient.shape):
        grad = gradient[b, s, n].astype(work, copy=False)
        c = cos_full[b, s].astype(work, copy=False)
        d = sin_full[b, s].astype(work, copy=False)
        grad1, grad2 = grad[..., :half], grad[..., half:]
        block = result[b, s, n]
        block[..., :half] = c[..., :half] * grad1 + d[..., half:] * grad2
        block[..., half:] = c[..., half:] * grad2 - d[..., :half] * grad1


def _sum_products(inputs: Mapping[str, Array], grad_cos: Array, grad_sin: Array, work: Any) -> None:
    batch = inputs["grad_query_embed"].shape[0]
    broadcast = grad_cos.shape[0] < batch
    # One block of cos after the other: all that is summed into it is summed before the next.
    rows = max(1, BLOCK_ELEMENTS // 8 // grad_cos.shape[-1])
    for first in range(0, grad_cos.shape[1], rows):
        s = slice(first, first + rows)
        for b in [slice(0, batch)] if broadcast else [slice(i, i + 1) for i in range(batch)]:
            target = slice(0, 1) if broadcast else b
            query = _sums(inputs["grad_query_embed"][b, s], inputs["query"][b, s], work)
            key = _sums(inputs["grad_key_embed"][b, s], inputs["key"][b, s], work)
            grad_cos[target, s, 0] = query[0] + key[0]
            grad_sin[target, s, 0] = query[1] + key[1]


def _sums(gradient: Array, value: Array, work: Any) -> tuple[Array, Array]:
    """Return sum(gradient*value) and sum(gradient*rot(value)) over N and B, each (S, D)."""
    _, length, _, width = gradient.shape
    half = width // 2
    plain = np.zeros((length, width), work)
    rotated = np.zeros((length, width), work)
    for b, s, n in blocks(gradient.shape):
        grad = gradient[b, s, n].astype(work, copy=False)
        x = value[b, s, n].astype(work, copy=False)
        # one batch after the other, however many a block has
        for part in _sum_of_products(grad, x):
            plain[s] += part
        for part in _sum_of_products(grad[..., :half], x[..., half:]):
            rotated[s, :half] -= part
        for part in _sum_of_products(grad[..., half:], x[..., :half]):
            rotated[s, half:] += part
    return plain, rotated


def _sum_of_products(a: Array, b: Array) -> Array:
    """Return sum(a*b) over N, in its order: (B, S, D) of (B, S, N, D)."""
    # Left to itself, numpy lays the products out as its inputs are strided and sums the axis that
    # lies innermost pairwise: the result's last bit would depend on the strides.
    products: Array = np.multiply(a, b, order="C")
    total: Array = products.sum(axis=2)
    return total
