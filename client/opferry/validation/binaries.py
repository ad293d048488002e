"""Tensors in files that a row names: raw bytes (.bin) and numpy's format (.npy)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import HostTensor, TensorSpec, raw_bytes
from opferry.validation.problems import CellError

SUFFIXES = (".bin", ".npy")
"""The kinds of file that are read."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_NPY_MAGIC = b"\x93NUMPY"


def check_binary(path: Path, spec: TensorSpec | None) -> None:
    """Check a tensor's file without reading its data.

    Args:
        path: the file.
        spec: what the tensor is; None if that is not known yet: the file is there, then, and of a
            kind that can be read.

    Raises:
        CellError: if the file is missing, of another kind, or does not fit the spec.
    """
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise CellError(
            f"names {path}: such a file is a pickle, which can run code, and is never read; save "
            "the tensor with numpy.save as .npy"
        )
    if suffix not in SUFFIXES:
        raise CellError(f"names {path}; give a file that ends in {' or '.join(SUFFIXES)}")
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise CellError(f"names {path}, which cannot be read: {error.strerror}") from error
    if size is None:
        raise CellError(f"names {path}, and there is no such file")
    if spec is None:
        return
    if suffix == ".npy":
        _mapped(path, spec)
    elif size != spec.data_bytes:
        raise CellError(
            f"names {path}, which has {size} bytes; {spec.dtype.value} of storage shape "
            f"{list(_storage_shape(spec))} takes {spec.data_bytes}"
        )


def load_binary(path: Path, spec: TensorSpec) -> HostTensor:
    """Read a tensor from a file.

    A .bin file holds the bytes of the tensor's storage in little endian; a .npy file an array of
    the storage's shape, in which bfloat16 is uint16 or two raw bytes. Nothing is ever unpickled.

    Args:
        path: the file.
        spec: what the tensor is; the result has the same.

    Raises:
        CellError: as `check_binary`, and if the file cannot be read.
    """
    check_binary(path, spec)
    if path.suffix.lower() == ".npy":
        mapped = _mapped(path, spec)
        native = mapped.dtype.newbyteorder("=")
        return HostTensor(spec, raw_bytes(np.array(mapped, dtype=native, order="C")))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CellError(f"names {path}, which cannot be read: {error.strerror}") from error
    if len(data) != spec.data_bytes:
        raise CellError(f"names {path}, whose size changed while it was read")
    return HostTensor(spec, memoryview(data))


def _mapped(path: Path, spec: TensorSpec) -> NDArray[Any]:
    """Return a .npy file's array in the spec's dtype, not read yet where that is possible."""
    try:
        with path.open("rb") as stream:
            if stream.read(len(_NPY_MAGIC)) != _NPY_MAGIC:
                raise ValueError("it does not start as one does")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    # numpy parses the header as Python, and lets out whatever that raises
    except Exception as error:
        raise CellError(f"names {path}, which is no .npy file that can be read: {error}") from error
    shapes = [_storage_shape(spec)]
    if spec.is_contiguous and spec.shape not in shapes:
        shapes.append(spec.shape)
    if array.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise CellError(
            f"names {path}, which has shape {list(array.shape)}; the tensor's storage has {wanted}"
        )
    _check_type(path, array.dtype, spec.dtype)
    return array


def _check_type(path: Path, given: np.dtype[Any], wanted: DType) -> None:
    native = given.newbyteorder("=")
    if native == wanted.numpy:
        return
    also = ""
    if wanted is DType.BFLOAT16:
        if native in (np.dtype(np.uint16), np.dtype("V2")):
            return
        also = ", whose bits a .npy file holds as uint16 or two raw bytes"
    raise CellError(f"names {path}, which holds {given}; the tensor is {wanted.value}{also}")


def _storage_shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape if spec.storage_shape is None else spec.storage_shape
