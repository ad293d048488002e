"""The reference on cases worked out by hand, on special values, and on its callers' arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opferry.core.dtypes import DType

BF16 = np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan


def _tnd(dtype: Any, **values: Any) -> dict[str, np.ndarray]:
    """Return inputs of T = N = 1 and D = 2 from pairs or single numbers."""
    return {name: np.full((1, 1, 2), value, dtype) for name, value in values.items()}


def test_sums_over_a_batch_that_cos_broadcasts_over(compute: Any) -> None:
    """grad_cos and grad_sin of one cos for three batches are summed over them, query and key."""
    x = np.array([[1, 2], [3, 4], [5, 6]], np.float32).reshape(3, 1, 1, 2)
    ones = np.ones((3, 1, 1, 2), np.float32)
    outputs = compute(
        {
            "grad_query_embed": ones,
            "grad_key_embed": 10 * ones,
            "cos": ones[:1],
            "sin": 0 * ones[:1],
            "query": x,
            "key": x,
        },
        layout=1,
    )
    assert outputs["grad_cos"].tolist() == [[[[99, 132]]]]
    assert outputs["grad_sin"].tolist() == [[[[-132, 99]]]]
    assert (outputs["grad_query"] == 1).all()
    assert (outputs["grad_key"] == 10).all()


def test_infinities_and_the_nan_they_make(compute: Any) -> None:
    """Infinity times 1 is infinity, infinity times 0 is NaN, and nothing warns."""
    inputs = _tnd(np.float32, grad_query_embed=[1, 1], grad_key_embed=[0, 1], cos=INF, sin=0)
    outputs = compute(inputs, layout=4)
    np.testing.assert_array_equal(outputs["grad_query"].ravel(), [INF, INF])
    np.testing.assert_array_equal(outputs["grad_key"].ravel(), [NAN, INF])


def test_float16_overflows_to_infinity(compute: Any) -> None:
    """120000 does not fit into float16 and becomes infinity, not the largest finite number."""
    inputs = _tnd(np.float16, grad_query_embed=60000, grad_key_embed=-60000, cos=2, sin=0)
    outputs = compute(inputs, layout=4)
    assert outputs["grad_query"].ravel().tolist() == [INF, INF]
    assert outputs["grad_key"].ravel().tolist() == [-INF, -INF]


def test_bfloat16_sums_do_not_stick(compute: Any) -> None:
    """8192 ones add up in float32; a running sum in bfloat16 would stay at 256."""
    ones = np.ones((1, 4096, 2), BF16)
    inputs = dict.fromkeys(("grad_query_embed", "grad_key_embed", "query", "key"), ones)
    inputs |= {"cos": ones[:, :1], "sin": np.zeros((1, 1, 2), BF16)}
    outputs = compute(inputs, layout=4)
    assert outputs["grad_cos"].astype(float).tolist() == [[[8192, 8192]]]
    assert outputs["grad_sin"].astype(float).tolist() == [[[-8192, 8192]]]


def test_bfloat16_bits_through_the_operator(compute: Any) -> None:
    """Twice 0x3C24 is 0x3CA4, which is 0.02001953125."""
    gradient = np.full((1, 1, 2), 0x3C24, np.uint16).view(BF16)
    inputs = _tnd(BF16, grad_key_embed=1, cos=2, sin=0) | {"grad_query_embed": gradient}
    result = compute(inputs, layout=4)["grad_query"]
    assert result.view(np.uint16).ravel().tolist() == [0x3CA4, 0x3CA4]
    assert float(result[0, 0, 0]) == 0.02001953125


def test_the_halves_of_sin_cross(compute: Any) -> None:
    """The first half of a gradient takes sin's second half, and the other way round."""
    inputs = _tnd(np.float32, grad_query_embed=[3, 5], grad_key_embed=0, cos=0, sin=[7, 11])
    assert compute(inputs, layout=4)["grad_query"].ravel().tolist() == [5 * 11, -3 * 7]


def test_without_query_and_key_there_are_two_outputs(sizes: Any, compute: Any) -> None:
    """grad_cos and grad_sin are left out, and the gradients are the same as with them."""
    arrays = sizes(1, 2, 3, 4, 5, 6).arrays(0)
    whole = compute(arrays, 1)
    few = {name: array for name, array in arrays.items() if name not in ("query", "key")}
    outputs = compute(few, 1)
    assert list(whole) == ["grad_query", "grad_key", "grad_cos", "grad_sin"]
    assert list(outputs) == ["grad_query", "grad_key"]
    assert all((outputs[name] == whole[name]).all() for name in outputs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("special", [INF, -INF, NAN, 1e-45, "largest"])
def test_special_values_do_not_warn(compute: Any, dtype: str, special: Any) -> None:
    """Infinities, NaN, subnormals and overflowing sums are data; a warning would fail this test."""
    kind = np.dtype(dtype)
    value = ml_dtypes.finfo(kind).max if special == "largest" else np.float32(special)
    base = np.full((2, 3, 4, 6), value).astype(kind)
    cos = np.full((1, 3, 1, 6), value).astype(kind)
    inputs = {"grad_query_embed": base, "grad_key_embed": -base, "cos": cos, "sin": cos}
    outputs = compute(inputs | {"query": base, "key": base}, layout=1)
    assert {output.dtype for output in outputs.values()} == {kind}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("promote", [False, True])
@pytest.mark.parametrize(
    "extents", [(1, 2, 3, 1, 2, 6), (2, 3, 150, 3, 20, 64, 1), (4, 1, 5, 130, 1, 1024)]
)
def test_given_outputs_are_filled_to_the_last_element(
    sizes: Any, compute: Any, dtype: str, promote: bool, extents: tuple[int, ...]
) -> None:
    """Arrays given for the outputs are returned, every element written, no input touched."""
    arrays = sizes(*extents).arrays(4, DType(dtype))
    before = {name: array.tobytes() for name, array in arrays.items()}
    expected = compute(arrays, extents[0], promote=promote)
    poisoned = {name: np.full_like(array, NAN) for name, array in expected.items()}
    outputs = compute(arrays, extents[0], outputs=poisoned, promote=promote)
    for name, output in outputs.items():
        assert output is poisoned[name]
        assert output.tobytes() == expected[name].tobytes()
        assert not np.isnan(output.astype(np.float32)).any()
    assert {name: array.tobytes() for name, array in arrays.items()} == before


def test_outputs_may_lie_in_one_block_of_memory(sizes: Any, compute: Any) -> None:
    """Outputs written into parts of one buffer leave the bytes between them alone."""
    arrays = sizes(2, 3, 4, 2, 3, 8, 1).arrays(6)
    expected = compute(arrays, 2)
    gap = 16
    memory = bytearray(b"\x5a" * sum(array.nbytes + gap for array in expected.values()))
    outputs, at = {}, 0
    for name, array in expected.items():
        outputs[name] = np.ndarray(array.shape, array.dtype, memory, at)
        at += array.nbytes + gap
    compute(arrays, 2, outputs=outputs)
    at = 0
    for array in expected.values():
        assert memory[at : at + array.nbytes] == array.tobytes()
        at += array.nbytes + gap
        assert memory[at - gap : at] == b"\x5a" * gap
