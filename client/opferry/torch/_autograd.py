"""The derivatives of the operators, registered when this is imported.

That of the forward operator is the backward operator, on the server that computed forward. It has
fewer layouts, modes and widths: what is told of an axis of the forward operator is a view here.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from opferry.core.layouts import Layout, RotaryMode
from opferry.errors import NotDifferentiableError
from opferry.operators.apply_rotary_pos_emb import APPLY_ROTARY_POS_EMB
from opferry.torch._choice import chosen, using
from opferry.torch._operators import GRAD, LIBRARY


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradients need: query and key only for those of cos and sin."""
    query, key, cos, sin, layout, rotary_mode = inputs
    wants_tables = any(ctx.needs_input_grad[2:4])
    ctx.save_for_backward(cos, sin, *((query, key) if wants_tables else ()))
    # an output that nothing depends on has no gradient, and none is to be made of zeros
    ctx.set_materialize_grads(False)
    ctx.shapes = (query.shape, key.shape)
    ctx.layout = layout
    ctx.rotary_mode = rotary_mode
    # torch may run the backward in another thread, which knows no block
    ctx.server = chosen()


def _differentiate(
    ctx: Any, grad_query_embed: torch.Tensor | None, grad_key_embed: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key, cos and sin that are needed, and None of the others."""
    if ctx.rotary_mode != RotaryMode.HALF.value:
        raise NotDifferentiableError(
            f"rotary_mode {ctx.rotary_mode} has no derivative: the backward operator is of mode "
            "half alone",
            argument="rotary_mode",
            given=ctx.rotary_mode,
            allowed=RotaryMode.HALF.value,
        )
    needs = ctx.needs_input_grad
    cos, sin, *pair = ctx.saved_tensors
    layout = Layout(APPLY_ROTARY_POS_EMB.parse_attributes({"layout": ctx.layout}).layout)
    width = cos.shape[-1]
    gradients = (grad_query_embed, grad_key_embed)
    # cos and sin depend on both gradients, query and key on their own
    whole = [
        _zeros(cos, shape) if gradient is None or not (pair or needed) else gradient
        for gradient, shape, needed in zip(gradients, ctx.shapes, needs, strict=False)
    ]
    # what takes no part has none, whatever is in it: 0 times infinity is no 0
    pair = [
        _zeros(cos, shape) if gradient is None else tensor
        for tensor, gradient, shape in zip(pair, gradients, ctx.shapes, strict=False)
    ]
    given = [_backward_view(tensor, layout, width) for tensor in (*whole, cos, sin, *pair)]
    number = Layout.BSND if layout is Layout.BNSD else layout
    with nullcontext() if ctx.server is None else using(ctx.server):
        found = GRAD(*given, layout=int(number))
    grads: list[Any] = [None if each is None else _forward_view(each, layout) for each in found]
    if width < whole[0].shape[-1]:
        # what is not rotated is passed on, and so is its gradient
        tails = [gradient[..., width:] for gradient in whole]
        grads[:2] = [torch.cat(parts, -1) for parts in zip(grads[:2], tails, strict=True)]
    wanted = [
        needed and gradient is not None
        for needed, gradient in zip(needs, (*gradients, cos, sin), strict=False)
    ]
    kept = [grad if each else None for grad, each in zip(grads, wanted, strict=True)]
    return (*kept, None, None)


def _zeros(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return zeros that are one element: of a view, no more is sent."""
    return like.new_zeros(()).expand(shape)


def _backward_view(tensor: torch.Tensor, layout: Layout, width: int) -> torch.Tensor:
    """Return the rotated part of a tensor, in a layout that the backward operator has."""
    part = tensor[..., :width] if tensor.shape[-1] > width else tensor
    return part.transpose(1, 2) if layout is Layout.BNSD else part


def _forward_view(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    return tensor.transpose(1, 2) if layout is Layout.BNSD else tensor


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep nothing: there is no derivative to come."""


def _refuse(ctx: Any, *gradients: Any) -> NoReturn:
    raise NotDifferentiableError(
        "apply_rotary_pos_emb_grad has no derivative: the vendor has no operator for the second "
        "one of rotary position embedding; call backward without create_graph",
        argument="create_graph",
    )


torch.library.register_autograd(
    "opferry::apply_rotary_pos_emb", _differentiate, setup_context=_keep, lib=LIBRARY
)
torch.library.register_autograd(
    "opferry::apply_rotary_pos_emb_grad", _refuse, setup_context=_keep_nothing, lib=LIBRARY
)
