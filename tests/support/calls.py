"""Inputs for calls, and what the reference says to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.tensors import from_array
from opferry.operators import OPERATORS
from opferry.validation import compare

EXACT, SUMS = ("grad_query", "grad_key"), ("grad_cos", "grad_sin")
"""The outputs that are computed element by element, and those that are summed."""

ROTARY_GRAD = OPERATORS["ApplyRotaryPosEmbGrad"]


def tnd(
    tokens: int = 2,
    query_heads: int = 3,
    key_heads: int = 2,
    width: int = 8,
    *,
    dtype: Any = np.float32,
    with_query: bool = True,
    cos: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the arguments of a call with layout TND; *cos*, if given, fills cos."""
    rng = np.random.default_rng(seed)

    def draw(heads: int) -> NDArray[Any]:
        return rng.standard_normal((tokens, heads, width), np.float32).astype(dtype)

    arguments: dict[str, Any] = {
        "grad_query_embed": draw(query_heads),
        "grad_key_embed": draw(key_heads),
        "cos": draw(1),
        "sin": draw(1),
    }
    if cos is not None:
        arguments["cos"][...] = cos
    if with_query:
        arguments |= {"query": draw(query_heads), "key": draw(key_heads)}
    return {**arguments, "layout": 4}


def reference(arguments: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the reference's outputs for the arguments of a call."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    attributes = {name: arguments[name] for name in ("layout", "rotary_mode") if name in arguments}
    specs = {name: from_array(name, array).spec for name, array in arrays.items()}
    plan = ROTARY_GRAD.check(specs, ROTARY_GRAD.parse_attributes(attributes))
    return ROTARY_GRAD.reference(arrays, plan)


def assert_same_bits(actual: Any, expected: dict[str, NDArray[Any]]) -> None:
    """Assert that a result has the expected outputs, bit for bit, NaN equal to NaN."""
    found = {
        name: getattr(actual, name) for name in ("grad_query", "grad_key", "grad_cos", "grad_sin")
    }
    assert {name for name, array in found.items() if array is not None} == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert canonical_nan(found[name]).tobytes() == canonical_nan(array).tobytes(), name


def assert_agrees(actual: Any, expected: dict[str, NDArray[Any]]) -> None:
    """Assert that a backend's result agrees with the reference.

    grad_query and grad_key have the reference's bits on every backend; the sums, whose order is a
    backend's own, have them on the CPU, and elsewhere pass the standard `mixed`.
    """
    if actual.execution.backend == "cpu":
        assert_same_bits(actual, expected)
        return
    exact = {name: array for name, array in expected.items() if name in EXACT}
    assert {name for name in (*EXACT, *SUMS) if getattr(actual, name) is not None} == set(expected)
    for name, array in exact.items():
        found = canonical_nan(getattr(actual, name))
        assert found.tobytes() == canonical_nan(array).tobytes(), name
    for name in SUMS:
        if name in expected:
            dtype = DType.of(expected[name].dtype, name)
            assert compare(getattr(actual, name), expected[name], dtype=dtype).passed, name
