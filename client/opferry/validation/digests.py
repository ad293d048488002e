"""Digests of outputs and of files."""

from __future__ import annotations

import hashlib
from math import inf
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.tensors import raw_bytes
from opferry.validation.rounding import FORMATS

BLOCK_ELEMENTS = 256 * 1024
"""Elements looked at at a time; a copy is made of those with NaN among them."""


def output_digest(array: NDArray[Any]) -> bytes:
    """Return the XXH3 64-bit digest of an output, every NaN replaced by the canonical one.

    Args:
        array: any shape, contiguous; float32, float16, bfloat16 or float64.

    Returns:
        8 bytes.
    """
    flat, found = array.reshape(-1), xxhash.xxh3_64()
    for first in range(0, flat.size, BLOCK_ELEMENTS):
        block = flat[first : first + BLOCK_ELEMENTS]
        found.update(raw_bytes(canonical_nan(block) if _has_nan(block) else block))
    return found.digest()


def file_digest(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 under which a server keeps data, 32 bytes.

    Args:
        data: a tensor's storage.
    """
    return hashlib.sha256(data).digest()


def _has_nan(values: NDArray[Any]) -> bool:
    if values.dtype.itemsize == 2:
        # numpy's isnan takes ten times as long on 16 bits
        infinity = FORMATS[DType.of(values.dtype, "output")].bits(inf)
        return bool((values.view(np.uint16) & 0x7FFF).max(initial=0) > infinity)
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(values).any())
