"""Tensors from and to .safetensors and .npz files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType

SUFFIXES = (".safetensors", ".npz")
"""The kinds of file that are understood."""


def load_tensors(path: Path, dtype: DType | None) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file by name.

    Args:
        path: a .safetensors or .npz file.
        dtype: what arrays of two raw bytes or uint16 are: numpy's format has no bfloat16.

    Raises:
        click.UsageError: if the file cannot be read as what its name says.
    """
    _check_suffix(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        with np.load(path, allow_pickle=False) as archive:
            return {name: _typed(name, archive[name], dtype) for name in archive.files}
    except click.UsageError:
        raise
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as err:
        raise click.UsageError(f"{path} cannot be read: {err}") from err
    except Exception as err:  # safetensors' own error derives from Exception alone
        if type(err).__name__ != "SafetensorError":
            raise
        raise click.UsageError(f"{path} cannot be read: {err}") from err


def save_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors to a file; `check_output` said that it can hold them."""
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(dict(arrays), path)
    else:
        contents: dict[str, Any] = dict(arrays)
        np.savez(path, **contents)


def check_output(path: Path, dtype: DType) -> None:
    """Check, before anything is run, that a file can be written and can hold a dtype.

    Raises:
        click.UsageError: for an unknown suffix, a missing folder, or bfloat16 in .npz.
    """
    _check_suffix(path)
    if not path.resolve().parent.is_dir():
        raise click.UsageError(f"--output {path}: there is no folder {path.parent}")
    if not os.access(path.resolve().parent, os.W_OK):
        raise click.UsageError(f"--output {path}: nothing can be written to {path.parent}")
    if path.suffix == ".npz" and dtype is DType.BFLOAT16:
        raise click.UsageError(f"--output {path}: .npz cannot hold bfloat16; use .safetensors")


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise click.UsageError(f"{path}: give a file that ends in {' or '.join(SUFFIXES)}")


def _typed(name: str, array: NDArray[Any], dtype: DType | None) -> NDArray[Any]:
    if array.dtype.kind == "V" or array.dtype == np.uint16:
        if dtype is None or dtype.itemsize != array.dtype.itemsize:
            raise click.UsageError(
                f"{name} has raw elements ({array.dtype}); say what they are, such as "
                "--dtype bfloat16"
            )
        return array.view(dtype.numpy)
    return array
