"""The reference's arithmetic: float32, one rounding at the end, the same bits always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from tests.support.rounding import ROUND

Array = NDArray[Any]
HALVES = [DType.FLOAT16, DType.BFLOAT16]


def _gradient(gradient: Array, cos: Array, sin: Array) -> Array:
    """Return grad_query in float32: two products, each rounded, then one sum."""
    g, c, s = (array.astype(np.float32) for array in (gradient, cos, sin))
    half = g.shape[-1] // 2
    with np.errstate(all="ignore"):
        first = c[..., :half] * g[..., :half] + s[..., half:] * g[..., half:]
        second = c[..., half:] * g[..., half:] - s[..., :half] * g[..., :half]
    return np.concatenate((first, second), axis=-1)


@pytest.mark.parametrize("dtype", HALVES)
@given(bits=hnp.arrays(np.uint16, (4, 2, 2, 6)))
def test_gradients_of_16_bits_are_correctly_rounded(
    compute: Any, dtype: DType, bits: Array
) -> None:
    """For any bits, infinities, NaN and subnormals too, each element is float32's, rounded once."""
    arrays = bits.view(dtype.numpy)
    inputs = {
        "grad_query_embed": arrays[0],
        "grad_key_embed": arrays[1],
        "cos": arrays[2, :, :1],
        "sin": arrays[3, :, :1],
    }
    outputs = compute(inputs, 4)
    for name in ("grad_query", "grad_key"):
        exact = _gradient(inputs[f"{name}_embed"], inputs["cos"], inputs["sin"])
        expected = [ROUND[dtype](value) for value in exact.ravel()]
        assert canonical_nan(outputs[name]).view(np.uint16).ravel().tolist() == expected


@given(bits=hnp.arrays(np.uint32, (4, 2, 2, 6)))
def test_gradients_of_32_bits_are_two_products_and_a_sum(compute: Any, bits: Array) -> None:
    """In float32 no multiplication is fused with the addition, for any bits."""
    arrays = bits.view(np.float32)
    inputs = {
        "grad_query_embed": arrays[0],
        "grad_key_embed": arrays[1],
        "cos": arrays[2, :, :1],
        "sin": arrays[3, :, :1],
    }
    outputs = compute(inputs, 4)
    for name in ("grad_query", "grad_key"):
        exact = _gradient(inputs[f"{name}_embed"], inputs["cos"], inputs["sin"])
        assert canonical_nan(outputs[name]).tobytes() == canonical_nan(exact).tobytes()


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("cos_batch", [1, 3])
def test_sums_are_made_in_float32_and_rounded_once(
    sizes: Any, compute: Any, dtype: DType, cos_batch: int
) -> None:
    """grad_cos and grad_sin are within one rounding of the sums in float64, whatever the dtype."""
    arrays = sizes(1, 3, 5, 300, 200, 16, cos_batch).arrays(3, dtype)
    outputs = compute(arrays, 1)
    promoted = compute(arrays, 1, promote=True)
    spacing = {DType.FLOAT32: 2**-24, DType.FLOAT16: 2**-11, DType.BFLOAT16: 2**-8}[dtype]
    for name in ("grad_cos", "grad_sin"):
        # the float32 sum of 1500 products of the size of 1 is off by less than 2e-4
        error = np.abs(outputs[name].astype(np.float64) - promoted[name])
        assert (error <= spacing * np.abs(promoted[name]) + 2e-4).all()


def _layouts_in_memory(array: Array) -> list[Array]:
    """Return arrays equal to *array* whose axes lie in every possible order in memory."""
    orders = [(0, 1, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0), (2, 0, 1, 3), (1, 0, 3, 2), (0, 3, 1, 2)]
    wide = np.repeat(array, 2, axis=-1)
    wide[..., 1::2] = np.nan
    return [
        *(
            np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
            for order in orders
        ),
        array[::-1, :, ::-1].copy()[::-1, :, ::-1],
        wide[..., ::2],
    ]


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("width", [2, 8])
def test_strides_do_not_change_a_bit(
    sizes: Any, compute: Any, layout: int, dtype: DType, width: int
) -> None:
    """Equal inputs give equal bits, however they lie in memory, read-only ones too."""
    arrays = sizes(layout, 2, 3, 257, 130, width, 1).arrays(8, dtype)
    expected = compute(arrays, layout)
    ways = {name: _layouts_in_memory(array) for name, array in arrays.items()}
    for way in zip(*ways.values(), strict=True):
        inputs = dict(zip(ways, way, strict=True))
        for array in inputs.values():
            array.flags.writeable = False
        for name, output in compute(inputs, layout).items():
            assert output.tobytes() == expected[name].tobytes()


@given(seed=st.integers(0, 2**32))
def test_layouts_agree(sizes: Any, compute: Any, seed: int) -> None:
    """The same call in SBND gives the bits of BSND, transposed."""
    arrays = sizes(1, 2, 3, 4, 2, 6, 1).arrays(seed)
    swapped = {name: array.swapaxes(0, 1) for name, array in arrays.items()}
    for name, output in compute(swapped, 2).items():
        assert output.swapaxes(0, 1).tobytes() == compute(arrays, 1)[name].tobytes()
