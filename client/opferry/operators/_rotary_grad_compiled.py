# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"
"""The rotary backward in one pass over memory, compiled: the bits of `_rotary_grad_reference`.

Importing this compiles it, or loads what an earlier process has compiled; any error in that means
that the processor or the installation has no compiler for it, and the blocked path stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import no_type_check

import numpy as np
from numba import types

from opferry.core.dtypes import DType
from opferry.operators._rotary_blocks import BLOCK_ELEMENTS, Array
from opferry.operators._rotary_vectors import (
    PIECE_ELEMENTS,
    B,
    N,
    S,
    signature,
    stack,
    vectors_of,
)
from opferry.operators.compiled import Threads, compiled, read, write

_INPUTS = ("grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key")
_OUTPUTS = ("grad_query", "grad_key", "grad_cos", "grad_sin")


# the rows of steps
_GQ, _GK, _COS, _SIN, _Q, _K, _OQ, _OK, _OCOS, _OSIN = range(10)


@compiled(*signature(6, 4, *[types.int64] * 5, *[types.boolean] * 2, *[types.int64] * 2))
@no_type_check
def _fused(
    gq, gk, cos, sin, q, k, oq, ok, ocos, osin,
    steps, batch, length, query_heads, key_heads, width, sums, broadcast, first, last,
):  # fmt: skip
    """Compute the rows first to last: of S if sums run over B, else of B and S together."""
    half = width // 2
    zero = np.float32(0)
    cos1, cos2, sin1, sin2 = stack(), stack(), stack(), stack()
    # the sums of a chunk of heads, of the path, and of the query's path
    part_c1, part_c2, part_s1, part_s2 = stack(), stack(), stack(), stack()
    sum_c1, sum_c2, sum_s1, sum_s2 = stack(), stack(), stack(), stack()
    query_c1, query_c2, query_s1, query_s2 = stack(), stack(), stack(), stack()
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
                at = b * steps[_COS, B] + s * steps[_COS, S]
                for d in range(half):
                    write(cos1, d, read(cos, at + d))
                    write(cos2, d, read(cos, at + half + d))
                at = b * steps[_SIN, B] + s * steps[_SIN, S]
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
                        g = b * g_step[B] + s * g_step[S] + n * g_step[N]
                        o = b * o_step[B] + s * o_step[S] + n * o_step[N]
                        for d in range(half):
                            g1, g2 = read(grad, g + d), read(grad, g + half + d)
                            write(out, o + d, read(cos1, d) * g1 + read(sin2, d) * g2)
                            write(out, o + half + d, read(cos2, d) * g2 - read(sin1, d) * g1)
                        if sums:
                            v = b * v_step[B] + s * v_step[S] + n * v_step[N]
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
            at = b_first * steps[_OCOS, B] + s * steps[_OCOS, S]
            for d in range(half):
                write(ocos, at + d, read(query_c1, d) + read(sum_c1, d))
                write(ocos, at + half + d, read(query_c2, d) + read(sum_c2, d))
            at = b_first * steps[_OSIN, B] + s * steps[_OSIN, S]
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
            Whether it was done: not, if the arrays are none for `vectors_of`; then nothing was
            written.
        """
        grad_query = inputs["grad_query_embed"]
        batch, length, query_heads, width = grad_query.shape
        key_heads = inputs["grad_key_embed"].shape[2]
        sums = "grad_cos" in outputs
        # what is absent is not touched; something has to stand in its place
        given = vectors_of(
            [inputs.get(name, grad_query) for name in _INPUTS],
            [outputs.get(name, outputs["grad_query"]) for name in _OUTPUTS],
            DType.of(grad_query.dtype, "grad_query_embed"),
        )
        if given is None:
            return False
        vectors, steps = given
        broadcast = sums and outputs["grad_cos"].shape[0] < batch
        row_elements = (query_heads + key_heads) * width * (batch if broadcast else 1)
        sizes = (batch, length, query_heads, key_heads, width, sums, broadcast)
        self._threads.run(
            lambda first, last: _fused(*vectors, steps, *sizes, first, last),
            length if broadcast else batch * length,
            max(1, PIECE_ELEMENTS // row_elements),
        )
        return True
