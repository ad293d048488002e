"""Inputs and goldens in files that a row names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec, raw_bytes, view_array
from opferry.validation import CaseFile, CaseFileError, CellError, load_binary, read_cases

SPEC = {dtype: TensorSpec(dtype, (2, 3, 4)) for dtype in DType}
VIEW = TensorSpec(DType.FLOAT32, (2, 3), (4, 1), 1, (3, 4))


def values(dtype: DType, shape: tuple[int, ...] = (2, 3, 4)) -> NDArray[Any]:
    count = int(np.prod(shape))
    return np.linspace(-3, 3, count, dtype=np.float32).reshape(shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", DType)
def test_raw_bytes_and_numpys_format(tmp_path: Path, dtype: DType) -> None:
    """Both give the same bits, whatever order and byte order numpy's file has."""
    array = values(dtype)
    wanted = bytes(raw_bytes(array))
    (tmp_path / "x.bin").write_bytes(wanted)
    np.save(tmp_path / "c.npy", array)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    bits = array.view(np.uint16 if dtype is DType.BFLOAT16 else dtype.numpy)
    np.save(tmp_path / "bits.NPY.npy", bits)
    np.save(tmp_path / "big.npy", bits.astype(bits.dtype.newbyteorder(">")))
    for name in ("x.bin", "c.npy", "f.npy", "bits.NPY.npy", "big.npy"):
        tensor = load_binary(tmp_path / name, SPEC[dtype])
        assert tensor.spec == SPEC[dtype]
        assert bytes(tensor.data) == wanted, name
        assert view_array(tensor.spec, tensor.data).dtype == dtype.numpy


def test_a_view_has_the_whole_storage(tmp_path: Path) -> None:
    """The gaps are in the file; a contiguous view may also have its own shape."""
    storage = values(DType.FLOAT32, (3, 4))
    np.save(tmp_path / "x.npy", storage)
    (tmp_path / "x.bin").write_bytes(storage.tobytes())
    for name in ("x.npy", "x.bin"):
        tensor = load_binary(tmp_path / name, VIEW)
        found = view_array(tensor.spec, tensor.data)
        assert np.array_equal(found, storage.reshape(-1)[1:9].reshape(2, 4)[:, :3])
    flat = TensorSpec(DType.FLOAT32, (3, 4), None, 0, (12,))
    assert bytes(load_binary(tmp_path / "x.npy", flat).data) == storage.tobytes()


@pytest.mark.parametrize(
    ("array", "spec", "said"),
    [
        (values(DType.FLOAT32), SPEC[DType.FLOAT16], "holds float32; the tensor is float16"),
        (values(DType.FLOAT16), SPEC[DType.BFLOAT16], "bfloat16, whose bits a .npy file holds as"),
        (np.zeros((2, 3, 4), "i2"), SPEC[DType.BFLOAT16], "holds int16"),
        (np.zeros((2, 3, 4), "u2"), SPEC[DType.FLOAT16], "holds uint16; the tensor is float16"),
        (np.zeros((2, 3, 4), [("a", "u1"), ("b", "u1")]), SPEC[DType.BFLOAT16], "holds [('a',"),
        (np.zeros((2, 3, 4), "S2"), SPEC[DType.BFLOAT16], "holds |S2"),
        (values(DType.FLOAT32, (4, 3, 2)), SPEC[DType.FLOAT32], "has shape [4, 3, 2]; the tensor"),
        (np.float32(1), SPEC[DType.FLOAT32], "has shape []"),
        (np.zeros((0, 3), "f4"), SPEC[DType.FLOAT32], "which "),
        (values(DType.FLOAT32, (2, 3)), VIEW, "has shape [2, 3]; the tensor's storage has [3, 4]"),
    ],
)
def test_arrays_that_do_not_fit(
    tmp_path: Path, array: NDArray[Any], spec: TensorSpec, said: str
) -> None:
    """Nothing is converted and nothing reshaped."""
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(CellError) as caught:
        load_binary(tmp_path / "x.npy", spec)
    assert said in str(caught.value)
    assert str(tmp_path / "x.npy") in str(caught.value)


class Trap:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("unpickled",))


HEADER = b"\x93NUMPY\x01\x00\x76\x00"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.bin", b"", "has 0 bytes; float32 of storage shape [2, 3, 4] takes 96"),
        ("x.bin", b"x" * 97, "has 97 bytes"),
        ("x.npy", b"", "is no .npy file that can be read: it does not start as one does"),
        ("x.npy", b"PK\x03\x04", "does not start as one"),
        ("x.npy", HEADER[:6], "is no .npy file"),
        ("x.npy", HEADER + b"x" * 118, "is no .npy file"),
        ("x.npy", HEADER + b"__import__('os')".ljust(118), "is no .npy file"),
        ("x.npy", b"\x93NUMPY\x09\x00" + b"x" * 100, "is no .npy file"),
        (
            "x.npy",
            HEADER + b"{'descr':'<f4','fortran_order':False,'shape':(2,3,4)}".ljust(118),
            "is no .npy file",
        ),
        (
            "x.npy",
            HEADER + b"{'descr':'<f4','fortran_order':False,'shape':(999999999999,)}".ljust(118),
            "is no .npy file",
        ),
        ("x.pt", b"x", "is a pickle, which can run code, and is never read; save the tensor"),
        ("x.txt", b"x", "give a file that ends in .bin or .npy"),
        ("x", b"x", "give a file that ends in .bin or .npy"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """Before their data is read."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CellError) as caught:
        load_binary(tmp_path / name, SPEC[DType.FLOAT32])
    assert said in str(caught.value)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .npy file of objects is a pickle."""
    monkeypatch.chdir(tmp_path)
    array = np.empty((2, 3, 4), object)
    array[0, 0, 0] = Trap()
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(CellError, match=r"is no \.npy file that can be read"):
        load_binary(tmp_path / "x.npy", SPEC[DType.FLOAT32])
    assert not (tmp_path / "unpickled").exists()


def write_inputs(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    np.save(folder / "gq.npy", values(DType.FLOAT32, (2, 3, 4, 8)))
    (folder / "cos.bin").write_bytes(values(DType.FLOAT32, (2, 3, 1, 8)).tobytes())


def test_a_row_that_names_files(tmp_path: Path, write_file: Callable[..., Path]) -> None:
    """Paths start at the case file's folder, and may leave it; the rest is generated."""
    write_inputs(tmp_path / "data")
    write_inputs(tmp_path.parent / "outside")
    outside = f"../outside/{'gq.npy'}"
    rows = [
        {"manual_tensor_binaries": "('data/gq.npy', None, 'data/cos.bin',)"},
        {"manual_tensor_binaries": f"[{outside!r}]", "manual_golden_binaries": "data/gq.npy"},
        {"manual_golden_binaries": f"(None,None,{str(tmp_path / 'data' / 'cos.bin')!r})"},
        {"manual_tensor_binaries": "(None,)", "manual_golden_binaries": "()"},
        {"manual_tensor_binaries": "('none.bin',)", "is_enabled": "False"},
    ]
    named = [{"testcase_name": f"case {i}", **row} for i, row in enumerate(rows)]
    cases = read_cases(write_file(*named)).cases
    data = tmp_path / "data"
    assert [dict(case.input_files) for case in cases] == [
        {"grad_query_embed": data / "gq.npy", "cos": data / "cos.bin"},
        {"grad_query_embed": tmp_path / outside},
        {},
        {},
        {},
    ]
    assert [dict(case.golden_files) for case in cases] == [
        {},
        {"grad_query": data / "gq.npy"},
        {"grad_cos": data / "cos.bin"},
        {},
        {},
    ]


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("manual_tensor_binaries", "('data/cos.bin',)", "has 192 bytes; float32 of storage shape"),
        ("manual_tensor_binaries", "(None,'data/gq.npy')", "has shape [2, 3, 4, 8]"),
        ("manual_tensor_binaries", "('data',)", "give a file that ends in"),
        ("manual_tensor_binaries", "('folder.bin',)", "and there is no such file"),
        ("manual_tensor_binaries", "(" + "None," * 4 + "'data/gq.npy')", "which is absent"),
        ("manual_golden_binaries", "(None,'data/gq.npy')", "has shape [2, 3, 4, 8]"),
    ],
)
def test_files_that_do_not_fit_a_row(
    tmp_path: Path, write_file: Callable[..., Path], column: str, cell: str, said: str
) -> None:
    """They are looked at when the case file is read: nothing runs first."""
    write_inputs(tmp_path / "data")
    (tmp_path / "folder.bin").mkdir()
    shapes = "((2,3,4,8),(2,3,2,8),(2,3,1,8),(2,3,1,8),None,None,(2,3,4,8),(2,3,2,8),)"
    path = write_file({"tensor_view_shapes": shapes, "output_tensor_indexes": "", column: cell})
    with pytest.raises(CaseFileError) as caught:
        read_cases(path)
    assert (caught.value.row, caught.value.column) == (2, column)
    assert said in caught.value.message


def test_a_row_that_breaks_the_contract(tmp_path: Path, make_file: Callable[..., CaseFile]) -> None:
    """What does not fit because the tensor is malformed shows when the row runs."""
    write_inputs(tmp_path / "data")
    row = {"tensor_view_offsets": "(9999,0)", "manual_tensor_binaries": "('data/gq.npy',)"}
    assert list(make_file(row).cases[0].input_files) == ["grad_query_embed"]
