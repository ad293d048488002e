# mypy: disable-error-code="untyped-decorator,no-any-return"
"""What the compiled loops of the rotary operators share: arrays as vectors, and rows on the stack.

A storage is a vector here. Halves of rows lie on the stack in arrays of their own, which the
compiler knows to overlap with nothing; else it would not use the processor's vector unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from opferry.core.dtypes import DType
from opferry.operators._rotary_blocks import Array
from opferry.operators._rotary_rules import MAX_WIDTH
from opferry.operators.compiled import VECTORS

MAX_HALF = MAX_WIDTH // 2
"""Half of the largest D that the contract allows."""

PIECE_ELEMENTS = 256 * 1024
"""Elements of both paths that a thread takes at a time: about 0.2 ms in float32."""

B, S, N = range(3)
"""The columns of a table of steps."""


@intrinsic
@no_type_check
def stack(typing):
    """Return MAX_HALF floats on the stack, others for each place of call."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), MAX_HALF))
        return builder.bitcast(block, ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(), generate


def signature(inputs: int, outputs: int, *others: Any) -> list[Any]:
    """Return the signatures of a kernel, one for each dtype.

    Args:
        inputs: how many vectors it reads.
        outputs: how many it writes, behind those.
        others: what comes behind the table of steps.
    """
    steps = types.Array(types.int64, 2, "C")
    return [
        types.void(
            *[types.Array(kind, 1, "C", readonly=True)] * inputs,
            *[types.Array(kind, 1, "C")] * outputs,
            steps,
            *others,
        )
        for kind in (types.float32, types.uint16, types.int16)
    ]


def vectors_of(
    sources: Sequence[Array], targets: Sequence[Array], dtype: DType
) -> tuple[list[Array], Array] | None:
    """Return arrays as vectors, with the table of their steps; None if they are not for it.

    They are if the last axis of each is contiguous and no wider than the contract allows, and each
    is aligned.

    Args:
        sources: what is read, each (B, S, N, D).
        targets: what is written, likewise.
        dtype: the dtype of all.
    """
    arrays = (*sources, *targets)
    if not all(array.shape[-1] <= MAX_WIDTH and _is_plain(array) for array in arrays):
        return None
    bits = VECTORS[dtype]
    vectors = [
        *(_vector(array, bits, writable=False) for array in sources),
        *(_vector(array, bits, writable=True) for array in targets),
    ]
    return vectors, np.array([_axis_steps(array) for array in arrays], np.int64)


def _is_plain(array: Array) -> bool:
    item = array.itemsize
    *outer, last = array.strides
    return (
        last == item
        and array.flags.aligned
        and all(step >= 0 and step % item == 0 for step in outer)
    )


def _axis_steps(array: Array) -> list[int]:
    """Return the distances along B, S and N in elements; 0 along a B that all batches share."""
    steps = [step // array.itemsize for step in array.strides[:3]]
    return steps if array.shape[0] > 1 else [0, *steps[1:]]


def _vector(array: Array, bits: Any, *, writable: bool) -> Array:
    """Return the memory that a view reaches over, as one vector."""
    if array.flags.c_contiguous:
        flat: Array = array.reshape(-1).view(bits)
    else:
        reach = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        shape = (reach // array.itemsize + 1,)
        flat = np.lib.stride_tricks.as_strided(array, shape, (array.itemsize,)).view(bits)
    flat.flags.writeable = writable
    return flat
