"""ApplyRotaryPosEmbGrad as one would write it down: its formulas on whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def whole(given: Mapping[str, Any], cat: Any, wide: Any, narrow: Any, total: Any) -> list[Any]:
    """Compute the formulas on whole arrays, numpy's or torch's, in any layout.

    Args:
        given: the inputs by the operator's names; D is the last axis of each.
        cat: joins a tuple of arrays along an axis.
        wide: converts an array to the type of all arithmetic.
        narrow: converts a result to the operator's dtype.
        total: sums over the axes where cos has 1, and keeps them.

    Returns:
        grad_query, grad_key and, with query and key, grad_cos and grad_sin.
    """
    inputs = {name: wide(array) for name, array in given.items()}
    half = given["cos"].shape[-1] // 2
    cos1, cos2 = inputs["cos"][..., :half], inputs["cos"][..., half:]
    sin1, sin2 = inputs["sin"][..., :half], inputs["sin"][..., half:]
    results = []
    for name in ("grad_query_embed", "grad_key_embed"):
        g1, g2 = inputs[name][..., :half], inputs[name][..., half:]
        results.append(narrow(cat((cos1 * g1 + sin2 * g2, cos2 * g2 - sin1 * g1), -1)))
    if "query" in inputs:
        grad_cos, grad_sin = 0, 0
        for name in ("query", "key"):
            gradient, value = inputs[f"grad_{name}_embed"], inputs[name]
            rotated = cat((-value[..., half:], value[..., :half]), -1)
            grad_cos = grad_cos + total(gradient * value)
            grad_sin = grad_sin + total(gradient * rotated)
        results += [narrow(grad_cos), narrow(grad_sin)]
    return results
