# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"
"""The rotary backward in one pass over memory, compiled: the same bits as `_rotary_reference`.

Importing this compiles it, or loads what an earlier process has compiled; any error in that means
that the processor or the installation has no compiler for it, and the blocked path stands.

A storage is a vector here. Halves of cos, sin and sums lie on the stack in arrays of their own,
which the compiler knows to overlap with nothing; else it would not use the processor's vector unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.operators._rotary_contract import MAX_WIDTH
from opferry.operators._rotary_reference import BLOCK_ELEMENTS
from opferry.operators.compiled import VECTORS, Threads, compiled, read, write

MAX_HALF = MAX_WIDTH // 2
"""Half of the largest D that the contract allows."""

PIECE_ELEMENTS = 256 * 1024
"""Elements of the gradients that a thread takes at a time: about 0.2 ms in float32."""

Array = NDArray[Any]

_INPUTS = ("grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key")
_OUTPUTS = ("grad_query", "grad_key", "grad_cos", "grad_sin")


@intrinsic
@no_type_check
def _stack(typing):
    """Return MAX_HALF floats on the stack, others for each place of call."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), MAX_HALF))
        return builder.bitcast(block, ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(), generate


def _signature(kind: Any) -> Any:
    source = types.Array(kind, 1, "C", readonly=True)
    target = types.Array(kind, 1, "C")
    steps = types.Array(types.int64, 2, "C")
    count = types.int64
    return types.void(
        *(source, source, source, source, source, source),
        *(target, target, target, target),
        *(steps, count, count, count, count, count, types.boolean, types.boolean, count, count),
    )


# the rows and columns of steps
_GQ, _GK, _COS, _SIN, _Q, _K, _OQ, _OK, _OCOS, _OSIN = range(10)
_B, _S, _N = range(3)


@compiled(*(_signature(kind) for kind in (types.float32, types.uint16, types.int16)))
@no_type_check
def _fused(
    gq, gk, cos, sin, q, k, oq, ok, ocos, osin,
    steps, batch, length, query_heads, key_heads, width, sums, broadcast, first, last,
):  # fmt: skip
    """Compute the rows first to last: of S if sums run over B, else of B and S together."""
    half = width // 2
    zero = np.float32(0)
    cos1, cos2, sin1, sin2 = _stack(), _stack(), _stack(), _stack()
    # the sums of a chunk of heads, of the path, and of the query's path
    part_c1, part_c2, part_s1, part_s2 = _stack(), _stack(), _stack(), _stack()
    sum_c1, sum_c2, sum_s1, sum_s2 = _stack(), _stack(), _stack(), _stack()
    query_c1, query_c2, query_s1, query_s2 = _stack(), _stack(), _stack(), _stack()
    chunk = max(1, BLOCK_ELEMENTS // width)
    for row in range(first, last):
        s = row if broadcast else row % length
        b_first = 0 if broadcast else row // length
        b_last = batch if broadcast else b_first + 1
        for path in range(2):
            is_query = path == 0
            heads = query_heads if is_query else key_heads
            grad, g_step = (gq, steps[_GQ]) if is_query else (gk, steps[_GK])
            value, v_step = (q, steps[_Q]) if is_query else (k, steps[_K])
            out, o_step = (oq, steps[_OQ]) if is_query else (ok, steps[_OK])
            if sums:
                for d in range(half):
                    write(sum_c1, d, zero)
                    write(sum_c2, d, zero)
                    write(sum_s1, d, zero)
                    write(sum_s2, d, zero)
            for b in range(b_first, b_last):
                at = b * steps[_COS, _B] + s * steps[_COS, _S]
                for d in range(half):
                    write(cos1, d, read(cos, at + d))
                    write(cos2, d, read(cos, at + half + d))
                at = b * steps[_SIN, _B] + s * steps[_SIN, _S]
                for d in range(half):
                    write(sin1, d, read(sin, at + d))
                    write(sin2, d, read(sin, at + half + d))
                for n_first in range(0, heads, chunk):
                    if sums:
                        for d in range(half):
                            write(part_c1, d, zero)
                            write(part_c2, d, zero)
                            write(part_s1, d, zero)
                            write(part_s2, d, zero)
                    for n in range(n_first, min(heads, n_first + chunk)):
                        g = b * g_step[_B] + s * g_step[_S] + n * g_step[_N]
                        o = b * o_step[_B] + s * o_step[_S] + n * o_step[_N]
                        for d in range(half):
                            g1, g2 = read(grad, g + d), read(grad, g + half + d)
                            write(out, o + d, read(cos1, d) * g1 + read(sin2, d) * g2)
                            write(out, o + half + d, read(cos2, d) * g2 - read(sin1, d) * g1)
                        if sums:
                            v = b * v_step[_B] + s * v_step[_S] + n * v_step[_N]
                            for d in range(half):
                                g1, g2 = read(grad, g + d), read(grad, g + half + d)
                                v1, v2 = read(value, v + d), read(value, v + half + d)
                                write(part_c1, d, read(part_c1, d) + g1 * v1)
                                write(part_c2, d, read(part_c2, d) + g2 * v2)
                                write(part_s1, d, read(part_s1, d) + g1 * v2)
                                write(part_s2, d, read(part_s2, d) + g2 * v1)
                    if sums:
                        for d in range(half):
                            write(sum_c1, d, read(sum_c1, d) + read(part_c1, d))
                            write(sum_c2, d, read(sum_c2, d) + read(part_c2, d))
                            write(sum_s1, d, read(sum_s1, d) - read(part_s1, d))
                            write(sum_s2, d, read(sum_s2, d) + read(part_s2, d))
            if sums and is_query:
                for d in range(half):
                    write(query_c1, d, read(sum_c1, d))
                    write(query_c2, d, read(sum_c2, d))
                    write(query_s1, d, read(sum_s1, d))
                    write(query_s2, d, read(sum_s2, d))
        if sums:
            at = b_first * steps[_OCOS, _B] + s * steps[_OCOS, _S]
            for d in range(half):
                write(ocos, at + d, read(query_c1, d) + read(sum_c1, d))
                write(ocos, at + half + d, read(query_c2, d) + read(sum_c2, d))
            at = b_first * steps[_OSIN, _B] + s * steps[_OSIN, _S]
            for d in range(half):
                write(osin, at + d, read(query_s1, d) + read(sum_s1, d))
                write(osin, at + half + d, read(query_s2, d) + read(sum_s2, d))


class FusedRotaryGrad:
    """The fused loops, and the threads that run them."""

    def __init__(self, thread_count: int) -> None:
        """Use up to *thread_count* threads, the caller's included."""
        self._threads = Threads(thread_count)

    def __call__(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
        """Fill the outputs of ApplyRotaryPosEmbGrad, with arithmetic in float32.

        Args:
            inputs: as `rotary_grad` takes them.
            outputs: likewise.

        Returns:
            Whether it was done: not, if an array's last axis is not contiguous or wider than the
            contract allows, or an array is not aligned; then nothing was written.
        """
        grad_query = inputs["grad_query_embed"]
        batch, length, query_heads, width = grad_query.shape
        key_heads = inputs["grad_key_embed"].shape[2]
        bits = VECTORS[DType.of(grad_query.dtype, "grad_query_embed")]
        sums = "grad_cos" in outputs
        # what is absent is not touched; something has to stand in its place
        sources = [inputs.get(name, grad_query) for name in _INPUTS]
        targets = [outputs.get(name, outputs["grad_query"]) for name in _OUTPUTS]
        if width > MAX_WIDTH or not all(map(_is_plain, (*sources, *targets))):
            return False
        vectors = [
            *(_vector(array, bits, writable=False) for array in sources),
            *(_vector(array, bits, writable=True) for array in targets),
        ]
        steps = np.array([_steps(array) for array in (*sources, *targets)], np.int64)
        broadcast = sums and outputs["grad_cos"].shape[0] < batch
        row_elements = (query_heads + key_heads) * width * (batch if broadcast else 1)
        sizes = (batch, length, query_heads, key_heads, width, sums, broadcast)
        self._threads.run(
            lambda first, last: _fused(*vectors, steps, *sizes, first, last),
            length if broadcast else batch * length,
            max(1, PIECE_ELEMENTS // row_elements),
        )
        return True


def _is_plain(array: Array) -> bool:
    item = array.itemsize
    *outer, last = array.strides
    return (
        last == item
        and array.flags.aligned
        and all(step >= 0 and step % item == 0 for step in outer)
    )


def _steps(array: Array) -> list[int]:
    """Return the distances along B, S and N in elements; 0 along a B that all batches share."""
    steps = [step // array.itemsize for step in array.strides[:3]]
    return steps if array.shape[0] > 1 else [0, *steps[1:]]


def _vector(array: Array, bits: Any, *, writable: bool) -> Array:
    """Return the memory that a view reaches over, as one vector."""
    if array.flags.c_contiguous:
        vector: Array = array.reshape(-1).view(bits)
    else:
        reach = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        shape = (reach // array.itemsize + 1,)
        vector = np.lib.stride_tricks.as_strided(array, shape, (array.itemsize,)).view(bits)
    vector.flags.writeable = writable
    return vector
