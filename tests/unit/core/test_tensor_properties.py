"""Properties of strided tensors: round trips, and exactly which specs are well formed."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import (
    MAX_EXTENT,
    TensorSpec,
    check_storage,
    contiguous_strides,
    from_array,
    view_array,
)

DTYPES = st.sampled_from(list(DType))
GUARD = 64
"""Elements around the memory that a view may address."""


@st.composite
def _views(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw an array and a view of it with any steps, also 0, negative and overlapping ones."""
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    steps = [draw(st.integers(-6, 6)) for _ in shape]
    reach = [(extent - 1) * step for extent, step in zip(shape, steps, strict=True)]
    before = -sum(step for step in reach if step < 0)
    count = before + sum(step for step in reach if step > 0) + 1
    dtype = draw(DTYPES)
    order = draw(st.sampled_from("<>"))
    memory = np.arange(count + 2 * GUARD).astype(dtype.numpy.newbyteorder(order))
    itemsize = dtype.itemsize
    view = np.ndarray(
        tuple(shape),
        memory.dtype,
        memory.view(np.uint8).data,
        (GUARD + before) * itemsize,
        tuple(step * itemsize for step in steps),
    )
    return memory, view


@given(_views(), st.booleans())
def test_any_view_is_read_back_equal(
    arrays: tuple[np.ndarray, np.ndarray], keep_strides: bool
) -> None:
    """A view with any strides comes back equal, and its memory is as before."""
    memory, view = arrays
    before = memory.tobytes()
    tensor = from_array("query", view, keep_strides=keep_strides)
    check_storage("query", tensor.spec)
    assert tensor.spec.data_bytes == len(tensor.data)
    np.testing.assert_array_equal(view_array(tensor.spec, bytes(tensor.data)), view)
    assert memory.tobytes() == before


@given(_views())
def test_what_is_sent_never_leaves_the_memory_of_the_array(
    arrays: tuple[np.ndarray, np.ndarray],
) -> None:
    """Memory that is sent without a copy lies between the array's first and last byte."""
    _, view = arrays
    data = np.frombuffer(from_array("query", view, keep_strides=True).data, np.uint8)
    if np.may_share_memory(data, view):
        first = view.__array_interface__["data"][0]
        steps = zip(view.shape, view.strides, strict=True)
        reach = sum((extent - 1) * step for extent, step in steps)
        assert data.__array_interface__["data"][0] == first
        assert data.nbytes == reach + view.itemsize


def _mostly(low: int, high: int, *seldom: int) -> st.SearchStrategy[int]:
    return st.sampled_from([*range(low, high + 1)] * 4 + [*seldom])


@settings(max_examples=500)
@given(
    shape=st.lists(_mostly(1, 4, 0), min_size=2, max_size=2) | st.lists(st.integers(0, 4)),
    strides=st.none()
    | st.lists(_mostly(0, 5, -1), min_size=2, max_size=2)
    | st.lists(st.integers(-1, 5), max_size=4),
    offset=_mostly(0, 6, -1),
    storage=st.none() | st.lists(_mostly(1, 6, 0), max_size=3),
)
@example(shape=[2], strides=[-1], offset=1, storage=[2])
def test_exactly_the_specs_inside_their_storage_are_well_formed(
    shape: list[int], strides: list[int] | None, offset: int, storage: list[int] | None
) -> None:
    """A spec is accepted if and only if each element that it addresses is in its storage."""
    spec = TensorSpec(
        DType.FLOAT16,
        tuple(shape),
        None if strides is None else tuple(strides),
        offset,
        None if storage is None else tuple(storage),
    )
    with nullcontext() if _inside(spec) else pytest.raises(Problem, match=r"^query "):
        check_storage("query", spec)


def _inside(spec: TensorSpec) -> bool:
    """Say the same by going through all elements."""
    storage = spec.shape if spec.storage_shape is None else spec.storage_shape
    strides = contiguous_strides(spec.shape) if spec.strides is None else spec.strides
    numbers = (*spec.shape, *storage)
    if len(strides) != len(spec.shape) or min(numbers, default=1) < 1:
        return False
    if min(strides, default=0) < 0 or spec.storage_offset < 0:
        return False
    places = [
        spec.storage_offset + sum(i * step for i, step in zip(index, strides, strict=True))
        for index in product(*(range(extent) for extent in spec.shape))
    ]
    return max(places) < prod(storage)


HUGE = st.integers(2**31, 2**63 - 1)


@given(st.lists(HUGE, min_size=1, max_size=8), DTYPES)
def test_huge_extents_do_not_overflow(shape: list[int], dtype: DType) -> None:
    """Extents whose product leaves 64 bits are counted right, and refused above the bound."""
    spec = TensorSpec(dtype, tuple(shape))
    assert spec.data_bytes == prod(shape) * dtype.itemsize
    if max(shape) > MAX_EXTENT:
        with pytest.raises(Problem, match=f"each is 1 to {MAX_EXTENT}"):
            check_storage("query", spec)
    else:
        check_storage("query", spec)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(DType.FLOAT32, (2, 2), (2**63, 1), 0, (4,)),
        TensorSpec(DType.FLOAT32, (2,), (1,), 2**63 - 1, (4,)),
        TensorSpec(DType.FLOAT32, (2**33, 2**33), (2**40, 2**40), 0, (2**40,)),
        TensorSpec(DType.FLOAT32, (2**32, 2**32), None, 0, (1,)),
        TensorSpec(DType.FLOAT32, (2**40,), (0,), 1, (1,)),
        TensorSpec(DType.FLOAT32, (-1, 4, 64)),
        TensorSpec(DType.FLOAT32, (2**40 + 1,), (0,), 0, (1,)),
    ],
)
def test_lying_specs_are_refused(spec: TensorSpec) -> None:
    """Numbers that would wrap around in 64 bits, or are negative, are refused."""
    with pytest.raises(Problem) as caught:
        check_storage("cos", spec)
    assert caught.value.reason is Reason.TENSOR_MALFORMED
    assert caught.value.message.startswith("cos ")


def test_a_view_may_be_larger_than_its_storage() -> None:
    """Steps of 0 show few elements many times, as broadcasting does."""
    spec = TensorSpec(DType.FLOAT32, (2**20, 2**20), (0, 0), 3, (2, 2))
    check_storage("cos", spec)
    assert (spec.view_bytes, spec.data_bytes) == (2**42, 16)
