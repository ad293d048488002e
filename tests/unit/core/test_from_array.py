"""Tensors of numpy arrays: what is sent, what is copied, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, from_array, view_array

Array = NDArray[Any]


def _counting(dtype: str) -> Array:
    """Return (4, 6) numbers that every dtype holds exactly."""
    return np.arange(24).reshape(4, 6).astype(dtype)


def _views(base: Array) -> dict[str, Array]:
    return {
        "C order": base,
        "F order": np.asfortranarray(base),
        "transposed": base.T,
        "every other row": base[::2],
        "a column range": base[:, 1:4],
        "every other column": base[:, 1::2],
        "rows backwards": base[::-1],
        "both backwards, skipping": base[::-2, ::-3],
        "stride 0": np.broadcast_to(base[1], (3, 6)),
        "stride 0 inside": np.broadcast_to(base[:, :1], (4, 5)),
        "an axis of one element": base[1:2, ::2],
        "added axes": base[:, np.newaxis, ::3, np.newaxis],
    }


VIEWS = sorted(_views(_counting("f4")))


@pytest.mark.parametrize("keep_strides", [False, True])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2", "bfloat16"])
@pytest.mark.parametrize("kind", VIEWS)
def test_every_array_arrives_equal(kind: str, dtype: str, keep_strides: bool) -> None:
    """Whatever its strides and byte order, an array is read back equal and is left as it was."""
    base = _counting(dtype)
    before = base.tobytes()
    array = _views(base)[kind]
    array.flags.writeable = False
    tensor = from_array("query", array, keep_strides=keep_strides)
    assert len(tensor.data) == tensor.spec.data_bytes
    back = view_array(tensor.spec, bytes(tensor.data))
    np.testing.assert_array_equal(back, array)
    assert (back.shape, back.dtype.isnative) == (array.shape, True)
    assert base.tobytes() == before


@pytest.mark.parametrize("kind", VIEWS)
def test_by_default_data_is_compact(kind: str) -> None:
    """Without keep_strides the data is the array's elements in C order, and nothing else."""
    array = _views(_counting("f4"))[kind]
    tensor = from_array("query", array)
    assert tensor.spec == TensorSpec(DType.FLOAT32, array.shape)
    assert bytes(tensor.data) == array.tobytes()


def test_a_contiguous_array_is_not_copied() -> None:
    """A contiguous little-endian array's own memory is what is sent."""
    array = _counting("f4")
    assert np.shares_memory(np.frombuffer(from_array("query", array).data, np.float32), array)


def test_a_strided_array_is_not_copied_with_keep_strides() -> None:
    """With keep_strides the memory between first and last element is what is sent."""
    array = _counting("f4")[1:3, 1::2]
    tensor = from_array("query", array, keep_strides=True)
    assert tensor.spec == TensorSpec(DType.FLOAT32, (2, 3), (6, 2), 0, (11,))
    assert np.shares_memory(np.frombuffer(tensor.data, np.float32), array)


@pytest.mark.parametrize("array", [_counting("f4")[::-1], _counting(">f4")[::2]])
def test_keep_strides_compacts_what_the_wire_cannot_say(array: Array) -> None:
    """Negative strides and foreign byte order are sent compact in spite of keep_strides."""
    tensor = from_array("query", array, keep_strides=True)
    assert tensor.spec.strides is None
    np.testing.assert_array_equal(view_array(tensor.spec, tensor.data), array)


def test_steps_that_are_no_whole_elements_are_compacted() -> None:
    """A field of a packed record, whose step is no multiple of its size, is sent compact."""
    records = np.zeros(5, np.dtype([("a", "<f4"), ("b", "<u2")]))
    records["a"] = range(5)
    tensor = from_array("query", records["a"], keep_strides=True)
    assert tensor.spec.strides is None
    np.testing.assert_array_equal(view_array(tensor.spec, tensor.data), range(5))


def test_memory_need_not_be_aligned() -> None:
    """An array at an odd address is sent as any other."""
    array = np.zeros(41, np.uint8)[1:].view(np.float32)
    array[:] = range(10)
    tensor = from_array("query", array[::3], keep_strides=True)
    np.testing.assert_array_equal(view_array(tensor.spec, tensor.data), [0, 3, 6, 9])


@pytest.mark.parametrize("step", [3, -40, 2**40])
def test_the_step_of_an_axis_of_one_element_means_nothing(step: int) -> None:
    """An axis of one element may have any step, and the other axes keep theirs."""
    base = np.arange(8, dtype=np.float32)
    array = np.ndarray((1, 4), np.float32, base.data, strides=(step, 8))
    tensor = from_array("query", array, keep_strides=True)
    assert tensor.spec.strides == (0, 2)
    np.testing.assert_array_equal(view_array(tensor.spec, tensor.data), [[0, 2, 4, 6]])


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f2", "bfloat16"])
@pytest.mark.parametrize("keep_strides", [False, True])
def test_a_scalar_keeps_its_shape(dtype: str, keep_strides: bool) -> None:
    """An array without axes stays one of one element."""
    tensor = from_array("cos", np.array(1.5, dtype), keep_strides=keep_strides)
    assert (tensor.spec.shape, tensor.spec.element_count) == ((), 1)
    assert float(view_array(tensor.spec, tensor.data)) == 1.5


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (0, 0)])
def test_arrays_without_elements_are_refused(shape: tuple[int, ...]) -> None:
    """An axis of size 0 is refused, with the shape in the text."""
    with pytest.raises(Problem, match=r"^key has shape .*0.*; no axis may be 0$") as caught:
        from_array("key", np.zeros(shape, np.float32))
    assert (caught.value.reason, caught.value.argument) == (Reason.TENSOR_MALFORMED, "key")


@pytest.mark.parametrize("given", [[1.0, 2.0], 1.0, b"1234", None, memoryview(b"1234")])
def test_other_objects_are_refused(given: object) -> None:
    """Whatever is no numpy array is refused by its type's name."""
    with pytest.raises(Problem, match=r"^sin is a \S+; give a numpy array$") as caught:
        from_array("sin", given)
    assert caught.value.reason is Reason.TENSOR_MALFORMED


def test_a_view_of_writable_memory_is_writable_and_of_other_memory_is_not() -> None:
    """view_array copies nothing: what it returns is as writable as its memory."""
    memory = bytearray(8)
    spec = TensorSpec(DType.FLOAT32, (2,))
    view_array(spec, memory)[1] = 1.0
    assert memory[4:] == np.float32(1.0).tobytes()
    assert not view_array(spec, bytes(memory)).flags.writeable


def test_canonical_sizes_of_a_spec() -> None:
    """Sizes of view and storage are counted apart, by the element's size."""
    spec = TensorSpec(DType.BFLOAT16, (2, 3), (8, 2), 5, (3, 8))
    assert (spec.element_count, spec.view_bytes) == (6, 12)
    assert (spec.storage_count, spec.data_bytes) == (24, 48)
    assert not spec.is_contiguous
    assert np.dtype(ml_dtypes.bfloat16).itemsize == spec.dtype.itemsize


@pytest.mark.parametrize(
    ("spec", "contiguous"),
    [
        (TensorSpec(DType.FLOAT32, (2, 3)), True),
        (TensorSpec(DType.FLOAT32, (2, 3), (3, 1)), True),
        (TensorSpec(DType.FLOAT32, (1, 3), (99, 1)), True),
        (TensorSpec(DType.FLOAT32, (2, 3), None, 0, (6,)), True),
        (TensorSpec(DType.FLOAT32, (2, 3), None, 0, (7,)), False),
        (TensorSpec(DType.FLOAT32, (2, 3), None, 1, (7,)), False),
        (TensorSpec(DType.FLOAT32, (2, 3), (1, 2)), False),
        (TensorSpec(DType.FLOAT32, ()), True),
    ],
)
def test_contiguous_is_the_whole_storage_in_order(spec: TensorSpec, contiguous: bool) -> None:
    """A view is contiguous if it is its whole storage in row-major order."""
    assert spec.is_contiguous is contiguous
