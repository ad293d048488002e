# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-call"
"""The rotary forward in one pass over memory, compiled: the bits of `_rotary_forward_reference`.

Importing this compiles it, or loads what an earlier process has compiled; any error in that means
that the processor or the installation has no compiler for it, and the blocked path stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import no_type_check

from numba import types

from opferry.core.dtypes import DType
from opferry.operators._rotary_blocks import Array
from opferry.operators._rotary_forward_reference import group_count
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

# the rows of steps
_Q, _K, _COS, _SIN, _OQ, _OK = range(6)


@compiled(*signature(4, 2, *[types.int64] * 8))
@no_type_check
def _fused(
    q, k, cos, sin, oq, ok,
    steps, length, query_heads, key_heads, width, rotated, groups, first, last,
):  # fmt: skip
    """Compute the rows first to last of B and S together."""
    run = rotated // (2 * groups)
    cos1, cos2, sin1, sin2 = stack(), stack(), stack(), stack()
    for row in range(first, last):
        b, s = row // length, row % length
        at_cos = b * steps[_COS, B] + s * steps[_COS, S]
        at_sin = b * steps[_SIN, B] + s * steps[_SIN, S]
        for g in range(groups):
            for i in range(run):
                pair, d = g * run + i, 2 * g * run + i
                write(cos1, pair, read(cos, at_cos + d))
                write(cos2, pair, read(cos, at_cos + d + run))
                write(sin1, pair, read(sin, at_sin + d))
                write(sin2, pair, read(sin, at_sin + d + run))
        for path in range(2):
            is_query = path == 0
            heads = query_heads if is_query else key_heads
            x, x_step = (q, steps[_Q]) if is_query else (k, steps[_K])
            out, o_step = (oq, steps[_OQ]) if is_query else (ok, steps[_OK])
            for n in range(heads):
                at = b * x_step[B] + s * x_step[S] + n * x_step[N]
                o = b * o_step[B] + s * o_step[S] + n * o_step[N]
                if run == 1:
                    # a loop of one turn for each pair would not use the vector unit
                    for pair in range(groups):
                        d = 2 * pair
                        x1, x2 = read(x, at + d), read(x, at + d + 1)
                        write(out, o + d, x1 * read(cos1, pair) - x2 * read(sin1, pair))
                        write(out, o + d + 1, x2 * read(cos2, pair) + x1 * read(sin2, pair))
                else:
                    for g in range(groups):
                        for i in range(run):
                            pair, d = g * run + i, 2 * g * run + i
                            x1, x2 = read(x, at + d), read(x, at + d + run)
                            write(out, o + d, x1 * read(cos1, pair) - x2 * read(sin1, pair))
                            write(out, o + d + run, x2 * read(cos2, pair) + x1 * read(sin2, pair))
                for d in range(rotated, width):
                    out[o + d] = x[at + d]


class FusedRotary:
    """The fused loops, and the threads that run them."""

    def __init__(self, thread_count: int) -> None:
        """Use up to *thread_count* threads, the caller's included."""
        self._threads = Threads(thread_count)

    def __call__(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], mode: str
    ) -> bool:
        """Fill the outputs of ApplyRotaryPosEmb, with arithmetic in float32.

        Args:
            inputs: as `rotate` takes them.
            outputs: likewise.
            mode: rotary_mode.

        Returns:
            Whether it was done: not, if the arrays are none for `vectors_of`; then nothing was
            written.
        """
        query, key, cos, sin = (inputs[name] for name in ("query", "key", "cos", "sin"))
        given = vectors_of(
            (query, key, cos, sin),
            (outputs["query_out"], outputs["key_out"]),
            DType.of(query.dtype, "query"),
        )
        if given is None:
            return False
        vectors, steps = given
        batch, length, query_heads, width = query.shape
        key_heads, rotated = key.shape[2], cos.shape[-1]
        sizes = (length, query_heads, key_heads, width, rotated, group_count(mode, rotated))
        self._threads.run(
            lambda first, last: _fused(*vectors, steps, *sizes, first, last),
            batch * length,
            max(1, PIECE_ELEMENTS // ((query_heads + key_heads) * width)),
        )
        return True
