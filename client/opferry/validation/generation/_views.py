"""Non-contiguous views of inputs: how a tensor may lie in a storage of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opferry.core.tensors import TensorSpec, contiguous_strides
from opferry.validation.generation._draws import Draws

TRANSPOSED, PACKED, PADDED, STEPPED, EXPANDED, OFFSET = (
    "stored with the heads before the positions",
    "slices of packed heads",
    "rows with gaps",
    "every second element",
    "batches repeated by a stride of 0",
    "behind an offset",
)
VIEWS = (TRANSPOSED, PACKED, PADDED, STEPPED, EXPANDED, OFFSET)
"""What a view may be, in the words of the row's remark."""

_PAIRS = (("grad_query_embed", "grad_key_embed"), ("query", "key"))
_TABLES = ("cos", "sin")


def draw_views(
    specs: Mapping[str, TensorSpec], draws: Draws, largest_bytes: int, head_axis: int = -2
) -> tuple[dict[str, TensorSpec], str]:
    """Return the inputs with some of them as views, and in what way.

    Args:
        specs: contiguous inputs, each with positions and heads before the width.
        draws: the row's choices.
        largest_bytes: the budget; over it, nothing is changed and the words are empty.
        head_axis: the axis of the heads, -2 or -3.
    """
    kind = draws.one_of(VIEWS)
    if kind == EXPANDED and _batch_axis(specs) is None:
        kind = TRANSPOSED
    result = dict(specs)
    if kind == EXPANDED:
        result |= {name: _expanded(specs[name], _batch_axis(specs) or 0) for name in _TABLES}
    elif kind == PACKED:
        pairs = [pair for pair in _PAIRS if pair[0] in specs]
        for first, second in pairs[: draws.between(1, 2)]:
            result[first], result[second] = _packed(specs[first], specs[second], head_axis)
    else:
        names = list(specs)
        chosen = {draws.one_of(names) for _ in range(draws.between(1, len(names)))}
        for name in names:
            if name in chosen:
                result[name] = _alone(kind, specs[name], draws)
    if sum(spec.data_bytes for spec in result.values()) > largest_bytes:
        return dict(specs), ""
    return result, kind


def _alone(kind: str, spec: TensorSpec, draws: Draws) -> TensorSpec:
    shape = spec.shape
    if kind == TRANSPOSED:
        stored = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        steps = contiguous_strides(stored)
        return replace(
            spec, strides=(*steps[:-3], steps[-2], steps[-3], steps[-1]), storage_shape=stored
        )
    if kind == OFFSET:
        offset = draws.between(1, shape[-1])
        return replace(
            spec,
            strides=contiguous_strides(shape),
            storage_offset=offset,
            storage_shape=(spec.element_count + offset,),
        )
    if kind == STEPPED:
        stored = (*shape[:-1], 2 * shape[-1])
        steps = contiguous_strides(stored)
        return replace(
            spec, strides=(*steps[:-1], 2), storage_offset=draws.below(2), storage_shape=stored
        )
    gap = draws.between(1, shape[-1])
    stored = (*shape[:-1], shape[-1] + gap)
    return replace(
        spec,
        strides=contiguous_strides(stored),
        storage_offset=draws.between(0, gap),
        storage_shape=stored,
    )


def _packed(first: TensorSpec, second: TensorSpec, head_axis: int) -> tuple[TensorSpec, TensorSpec]:
    """Return two tensors as the first and the last heads of one storage."""
    heads = first.shape[head_axis]
    stored = list(first.shape)
    stored[head_axis] += second.shape[head_axis]
    steps, storage = contiguous_strides(stored), tuple(stored)
    return (
        replace(first, strides=steps, storage_shape=storage),
        replace(
            second,
            strides=steps,
            storage_offset=heads * steps[head_axis],
            storage_shape=storage,
        ),
    )


def _batch_axis(specs: Mapping[str, TensorSpec]) -> int | None:
    """Return the axis before the positions on which cos has more than 1; None: it has none."""
    shape = specs["cos"].shape
    return 0 if len(shape) == 4 and shape[0] > 1 else None


def _expanded(spec: TensorSpec, axis: int) -> TensorSpec:
    stored = (*spec.shape[:axis], 1, *spec.shape[axis + 1 :])
    steps = contiguous_strides(stored)
    return replace(spec, strides=(*steps[:axis], 0, *steps[axis + 1 :]), storage_shape=stored)
