"""Tensors: what one is (`TensorSpec`), and how a numpy array becomes one and back.

The rules: the caller's arrays are never changed; by default any array (F order, slices, negative
strides, big-endian, broadcast views) is sent compact in C order; strides on the wire are in
elements and not negative; every element addressed lies inside the storage. Sizes are computed with
Python integers, because they come from strangers and must not overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason

MAX_EXTENT = 2**40
"""No axis, stride, offset or storage is larger: a bound for the arithmetic, far above any limit."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is, without its data. Counts are in elements."""

    dtype: DType
    """The type of one element."""
    shape: tuple[int, ...]
    """The extent of each axis of the view."""
    strides: tuple[int, ...] | None = None
    """The step of each axis; None: contiguous in row-major order."""
    storage_offset: int = 0
    """The position in the storage of the view's first element."""
    storage_shape: tuple[int, ...] | None = None
    """The extents of the storage; None: as shape."""

    @property
    def element_count(self) -> int:
        """The number of elements of the view."""
        return prod(self.shape)

    @property
    def view_bytes(self) -> int:
        """The size of the view, made contiguous, in bytes."""
        return self.element_count * self.dtype.itemsize

    @cached_property
    def storage_count(self) -> int:
        """The number of elements of the storage."""
        return prod(self.shape if self.storage_shape is None else self.storage_shape)

    @cached_property
    def data_bytes(self) -> int:
        """The size of the storage, and so of the data that is sent, in bytes."""
        return self.storage_count * self.dtype.itemsize

    @cached_property
    def full_strides(self) -> tuple[int, ...]:
        """The step of each axis, also where `strides` is None."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    @property
    def is_contiguous(self) -> bool:
        """Whether the view is its whole storage in row-major order."""
        steps = zip(self.shape, self.full_strides, contiguous_strides(self.shape), strict=True)
        return (
            self.storage_offset == 0
            and self.storage_count == self.element_count
            and all(extent == 1 or given == dense for extent, given, dense in steps)
        )


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of *shape*, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def check_storage(name: str, spec: TensorSpec) -> None:
    """Check that a tensor is well formed: extents, strides and offset stay inside the storage.

    Args:
        name: the operator's parameter, for the error's text.
        spec: any spec, from whatever source.

    Raises:
        Problem: TENSOR_MALFORMED, naming the tensor and the rule.
    """
    storage_shape = spec.shape if spec.storage_shape is None else spec.storage_shape
    strides = spec.full_strides
    if len(strides) != len(spec.shape):
        raise malformed(name, f"has {len(strides)} strides for {len(spec.shape)} axes")
    for kind, numbers, least in (
        ("shape", spec.shape, 1),
        ("storage shape", storage_shape, 1),
        ("strides", () if spec.strides is None else spec.strides, 0),
        ("storage offset", (spec.storage_offset,), 0),
    ):
        if any(number < least or number > MAX_EXTENT for number in numbers):
            raise malformed(name, f"has {kind} {list(numbers)}; each is {least} to {MAX_EXTENT}")
    last = spec.storage_offset + sum(
        (extent - 1) * step for extent, step in zip(spec.shape, strides, strict=True)
    )
    if last >= prod(storage_shape):
        raise malformed(
            name, f"addresses element {last} of a storage of {prod(storage_shape)} elements"
        )


def malformed(name: str, message: str) -> Problem:
    """Return the problem of a tensor that is not well formed; *message* follows the name."""
    return Problem(Reason.TENSOR_MALFORMED, f"{name} {message}", argument=name)


@dataclass(frozen=True)
class HostTensor:
    """A tensor in this process's memory: its spec and the bytes of its storage."""

    spec: TensorSpec
    """What the tensor is."""
    data: memoryview
    """The storage's bytes: one axis, format "B", read-only or not."""


def from_array(name: str, array: Any, *, keep_strides: bool = False) -> HostTensor:
    """Make a tensor of a numpy array without changing the array.

    A contiguous little-endian array is not copied: the tensor refers to its memory.

    Args:
        name: the operator's parameter, for the error's text.
        array: a numpy array of float32, float16 or bfloat16; any strides, any byte order, no axis
            of size 0.
        keep_strides: send the memory that the array spans together with its strides, where they
            are not negative; otherwise, and by default, a compact copy in C order.

    Raises:
        Problem: TENSOR_MALFORMED if it is no numpy array or has an axis of size 0,
            DTYPE_NOT_ALLOWED for another dtype.
    """
    spec = spec_of_array(name, array, keep_strides=keep_strides)
    return HostTensor(spec, data_of_array(array, spec))


def spec_of_array(name: str, array: Any, *, keep_strides: bool = False) -> TensorSpec:
    """Return what `from_array` would make of an array, without touching its data.

    Args:
        name: as for `from_array`.
        array: as for `from_array`.
        keep_strides: as for `from_array`.

    Raises:
        Problem: as `from_array`.
    """
    if not isinstance(array, np.ndarray):
        kind = type(array).__qualname__
        raise malformed(name, f"is a {kind}; give a numpy array")
    # numpy loads its masked arrays when they are first named: not for arrays that are plain
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise malformed(name, "is a masked array, whose mask would be lost; fill it first")
    dtype = DType.of(array.dtype, name)
    if array.size == 0:
        raise malformed(name, f"has shape {list(array.shape)}; no axis may be 0")
    if keep_strides and not array.flags.c_contiguous and array.dtype.isnative:
        return _span(array, dtype) or TensorSpec(dtype, array.shape)
    return TensorSpec(dtype, array.shape)


def data_of_array(array: NDArray[Any], spec: TensorSpec) -> memoryview:
    """Return the bytes that go with a spec of `spec_of_array`; copies where it must.

    Args:
        array: the array that the spec was made of.
        spec: its spec.
    """
    if spec.strides is None:
        return raw_bytes(np.asarray(array, dtype=spec.dtype.numpy, order="C"))
    # Inside the array's own memory: from its first element to its last.
    step = (spec.dtype.itemsize,)
    span = np.lib.stride_tricks.as_strided(array, spec.storage_shape, step, writeable=False)
    return raw_bytes(span)


def store_array(array: NDArray[Any], spec: TensorSpec, target: memoryview) -> None:
    """Write what `data_of_array` would return to memory, without making it first.

    Args:
        array: the array that the spec was made of.
        spec: its spec.
        target: spec.data_bytes writable bytes.
    """
    if spec.strides is not None or (array.flags.c_contiguous and array.dtype.isnative):
        copy_bytes(data_of_array(array, spec), target)
    elif array.dtype.isnative:
        # numpy copies numbers of its own several times faster than bfloat16
        number = np.dtype(f"u{spec.dtype.itemsize}")
        np.copyto(np.ndarray(spec.shape, number, target), np.asarray(array).view(number))
    else:
        np.copyto(np.ndarray(spec.shape, spec.dtype.numpy, target), array, casting="equiv")


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copy bytes to memory of the same size; unlike an assignment, other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def _span(array: NDArray[Any], dtype: DType) -> TensorSpec | None:
    """Return the spec of the memory from the array's first to its last element, or None."""
    steps = [
        # an axis of size 1 is never stepped along
        (0, 0) if extent == 1 else divmod(step, dtype.itemsize)
        for extent, step in zip(array.shape, array.strides, strict=True)
    ]
    strides = tuple(step for step, _ in steps)
    if any(rest for _, rest in steps) or any(step < 0 for step in strides):
        return None
    count = 1 + sum((extent - 1) * step for extent, step in zip(array.shape, strides, strict=True))
    return TensorSpec(dtype, array.shape, strides, 0, (count,))


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a C-contiguous array as a memoryview of format "B", without a copy."""
    # ml_dtypes' types have no buffer protocol; a view as bytes has.
    return array.reshape(-1).view(np.uint8).data


def view_array(spec: TensorSpec, data: Any) -> NDArray[Any]:
    """Return the array that a spec describes over its storage's bytes, without a copy.

    Args:
        spec: a checked spec.
        data: an object with the buffer protocol that holds spec.data_bytes bytes; the array is
            read-only if it is.
    """
    itemsize = spec.dtype.itemsize
    return np.ndarray(
        spec.shape,
        spec.dtype.numpy,
        data,
        spec.storage_offset * itemsize,
        tuple(step * itemsize for step in spec.full_strides),
    )
