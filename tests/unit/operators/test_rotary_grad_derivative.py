"""The reference against independent computations: derivatives of the forward, plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]

FORWARD = {"grad_query": "query", "grad_key": "key", "grad_cos": "cos", "grad_sin": "sin"}
"""Each output is the derivative with respect to this input of the forward."""


def _rotated(x: Array) -> Array:
    half = x.shape[-1] // 2
    return np.concatenate((-x[..., half:], x[..., :half]), axis=-1)


def _loss(values: dict[str, Array]) -> float:
    """Contract what the forward makes of query and key with the cotangents."""
    total = 0.0
    for name in ("query", "key"):
        x = values[name]
        y = x * values["cos"] + _rotated(x) * values["sin"]
        total += float((y * values[f"grad_{name}_embed"]).sum())
    return total


def _derivative(values: dict[str, Array], name: str) -> Array:
    """Return the derivative of the loss by central differences.

    The loss is linear in each single input, so any step gives the derivative up to rounding.
    """
    step = 0.5
    result = np.empty_like(values[name])
    for place in np.ndindex(result.shape):
        ends = []
        for sign in (1, -1):
            moved = values[name].copy()
            moved[place] += sign * step
            ends.append(_loss({**values, name: moved}))
        result[place] = (ends[0] - ends[1]) / (2 * step)
    return result


@st.composite
def _extents(draw: st.DrawFn, layout: int) -> tuple[int, ...]:
    batch = draw(st.integers(1, 3))
    return (
        layout,
        batch,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        2 * draw(st.integers(1, 3)),
        draw(st.sampled_from([1, batch])),
    )


@pytest.mark.parametrize("layout", [1, 2, 4])
@settings(max_examples=40)
@given(st.data())
def test_outputs_are_derivatives_of_the_forward(
    sizes: Any, compute: Any, layout: int, data: st.DataObject
) -> None:
    """All four outputs are the forward's numerical derivatives, for any extents and broadcast."""
    extents = sizes(*data.draw(_extents(layout)))
    arrays = extents.arrays(data.draw(st.integers(0, 2**32)))
    outputs = compute(arrays, layout, promote=True)
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    for output, name in FORWARD.items():
        derivative = _derivative(values, name)
        assert outputs[output].shape == derivative.shape
        np.testing.assert_allclose(outputs[output], derivative, rtol=1e-9, atol=1e-9)


def _formula(values: dict[str, Array]) -> dict[str, Array]:
    """Compute on whole arrays what the vendor documents."""
    cos, sin = values["cos"], values["sin"]
    half = cos.shape[-1] // 2
    outputs = {}
    for name in ("query", "key"):
        g1, g2 = np.split(values[f"grad_{name}_embed"], [half], axis=-1)
        outputs[f"grad_{name}"] = np.concatenate(
            (
                cos[..., :half] * g1 + sin[..., half:] * g2,
                cos[..., half:] * g2 - sin[..., :half] * g1,
            ),
            axis=-1,
        )
    for name, turned in (("cos", lambda x: x), ("sin", _rotated)):
        outputs[f"grad_{name}"] = sum(
            _onto(cos.shape, values[f"grad_{x}_embed"] * turned(values[x]))
            for x in ("query", "key")
        )
    return outputs


def _onto(shape: tuple[int, ...], array: Array) -> Array:
    pairs = enumerate(zip(shape, array.shape, strict=True))
    dims = tuple(axis for axis, (one, many) in pairs if one == 1 < many)
    return array.sum(axis=dims, keepdims=True)


LARGE = {
    "blocks of B": (1, 3, 40, 20, 7, 64),
    "blocks of B, one cos": (1, 3, 40, 20, 7, 64, 1),
    "blocks of S": (1, 2, 150, 20, 3, 64),
    "blocks of S in SBND": (2, 2, 150, 3, 20, 64),
    "blocks of S in SBND, one cos": (2, 3, 150, 3, 20, 64, 1),
    "blocks of N": (1, 1, 3, 200, 1, 1024),
    "blocks of N, one cos": (2, 2, 2, 130, 129, 1024, 1),
    "rows of cos": (1, 2, 40, 2, 3, 1024, 1),
    "blocks of T": (4, 1, 300, 20, 20, 64),
    "odd ends": (4, 3, 7, 131, 3, 1022),
    "one head": (1, 3, 700, 1, 1, 128),
}


@pytest.mark.parametrize("extents", LARGE.values(), ids=LARGE)
def test_blocks_fit_together(sizes: Any, compute: Any, extents: tuple[int, ...]) -> None:
    """Shapes that take several blocks, with remainders, give what the formula gives at once."""
    arrays = sizes(*extents).arrays(seed=5)
    expected = _formula({name: array.astype(np.float64) for name, array in arrays.items()})
    promoted = compute(arrays, extents[0], promote=True)
    single = compute(arrays, extents[0])
    for name, array in expected.items():
        assert promoted[name].dtype == np.float64
        np.testing.assert_allclose(promoted[name], array, rtol=1e-11, atol=1e-11)
        assert single[name].dtype == np.float32
        np.testing.assert_allclose(single[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [2, 6, 64, 192, 1022])
def test_a_rotation_keeps_norms(sizes: Any, compute: Any, width: int) -> None:
    """With the cos and sin of one angle for both halves, gradients keep their length."""
    arrays = sizes(1, 2, 3, 4, 5, width).arrays(seed=1)
    angles = np.random.default_rng(2).uniform(0, 6, (2, 3, 1, width // 2))
    angles = np.concatenate((angles, angles), axis=-1)
    arrays |= {"cos": np.cos(angles, dtype=np.float32), "sin": np.sin(angles, dtype=np.float32)}
    outputs = compute(arrays, 1)
    for name in ("query", "key"):
        before = np.linalg.norm(arrays[f"grad_{name}_embed"], axis=-1)
        np.testing.assert_allclose(np.linalg.norm(outputs[f"grad_{name}"], axis=-1), before, 1e-5)
