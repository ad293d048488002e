"""Rounding of float32 to 16 bits, to nearest and ties to even, without numpy's conversions."""

from __future__ import annotations

import struct

import numpy as np

from opferry.core.dtypes import DType


def _bfloat16_bits(value: np.float32) -> int:
    """Round by integer arithmetic on the bits."""
    bits = int(value.view(np.uint32))
    if np.isnan(value):
        return 0x7FC0
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _float16_bits(value: np.float32) -> int:
    """Round as Python's struct does, which refuses to overflow."""
    if np.isnan(value):
        return 0x7E00
    try:
        return int.from_bytes(struct.pack("<e", float(value)), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


ROUND = {DType.FLOAT16: _float16_bits, DType.BFLOAT16: _bfloat16_bits}
"""From float32 to the bits of a dtype; NaN becomes the canonical one."""
