"""The operators for torch's tensors, with their derivatives; docs/torch.md says more.

    import opferry.torch

    opferry.torch.use("host:50051")
    query, key = opferry.torch.apply_rotary_pos_emb(query, key, cos, sin)

The functions stand for operators that torch.compile and torch.export take as they are:
torch.ops.opferry.apply_rotary_pos_emb and torch.ops.opferry.apply_rotary_pos_emb_grad.
"""

from __future__ import annotations

try:
    import torch
except ImportError as missing:
    raise ImportError(
        "opferry.torch needs PyTorch, the extra \"torch\": pip install '.[torch]' in a checkout"
    ) from missing

import opferry.torch._autograd  # noqa: F401 - registers the derivatives
from opferry.torch._choice import use, using
from opferry.torch._operators import FORWARD, GRAD
from opferry.torch._tensors import (
    check_given,
    name_of,
    number_of,
    refuse_tangents,
    width_of_heads,
)

__all__ = ["apply_rotary_pos_emb", "apply_rotary_pos_emb_grad", "use", "using"]


def apply_rotary_pos_emb_grad(
    grad_query_embed: torch.Tensor,
    grad_key_embed: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    query: torch.Tensor | None = None,
    key: torch.Tensor | None = None,
    rotary_mode: str = "half",
    layout: int | str = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Run the backward of rotary position embedding on the server.

    Arguments, defaults and results are those of cann_ops_transformer's function. All tensors have
    one dtype, float32, float16 or bfloat16, and one device, which the results are on too. They are
    sent from where they are, views as views. There is no derivative of it.

    Args:
        grad_query_embed: (B, S, Nq, D), (S, B, Nq, D) or (T, Nq, D); D even, at most 1024.
        grad_key_embed: the same with Nk in place of Nq.
        cos: (Bc, S, 1, D), (S, Bc, 1, D) or (T, 1, D); Bc is 1 or B.
        sin: shaped as cos.
        query: shaped as grad_query_embed; together with key it asks for grad_cos and grad_sin.
        key: shaped as grad_key_embed.
        rotary_mode: "half".
        layout: 1 or "BSND", 2 or "SBND", 4 or "TND".

    Returns:
        grad_query, grad_key, grad_cos and grad_sin, contiguous, in memory of their own; the last
        two None without query and key.

    Raises:
        RequestError: the call breaks the contract or a limit, or no server was chosen; also a
            ValueError.
        ServerError: the server or its device failed, or stayed busy; also a RuntimeError.
        TransportError: the server cannot be reached.
        DeadlineError: the client's time for a call was over.
    """
    check_given(
        {
            "grad_query_embed": grad_query_embed,
            "grad_key_embed": grad_key_embed,
            "cos": cos,
            "sin": sin,
        }
    )
    refuse_tangents(grad_query_embed, grad_key_embed, cos, sin, query, key)
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None] = GRAD(
        grad_query_embed, grad_key_embed, cos, sin, query, key, rotary_mode, number_of(layout)
    )
    return found


def apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: int | str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run rotary position embedding on the server; it is differentiable in all four tensors.

    Arguments, defaults and results are those of cann_ops_transformer's function; dtypes, devices
    and memory as for `apply_rotary_pos_emb_grad`, which computes the derivative, on the same
    server. That of the modes "interleave" and "quarter" it does not have, nor a second one.

    Args:
        query: (B, S, Nq, D), (S, B, Nq, D), (B, Nq, S, D) or (T, Nq, D); with layout "BSH" also
            (B, S, Nq * D), where D is the last axis of cos.
        key: the same with Nk in place of Nq.
        cos: (Bc, S, 1, R), (S, Bc, 1, R), (Bc, 1, S, R) or (T, 1, R); Bc is 1 or B; R at most D.
            The first R elements are rotated, the others passed on.
        sin: shaped as cos.
        layout: "BSND" or 1, "BSH" (the same), "SBND" or 2, "BNSD" or 3, "TND" or 4.
        rotary_mode: "half", "interleave" or "quarter": how the R elements pair up.

    Returns:
        query_out and key_out, shaped as query and key, contiguous, in memory of their own.

    Raises:
        OpFerryError: as `apply_rotary_pos_emb_grad`; in backward also a NotDifferentiableError,
            which is a ValueError and a NotImplementedError, for a derivative that there is not.
    """
    check_given({"query": query, "key": key, "cos": cos, "sin": sin})
    refuse_tangents(query, key, cos, sin)
    layout = name_of(layout)
    if layout.strip().upper() == "BSH" and query.dim() == 3 and key.dim() == 3:
        width = width_of_heads(query, key, cos)
        query_out, key_out = FORWARD(
            query.unflatten(-1, (-1, width)),
            key.unflatten(-1, (-1, width)),
            cos,
            sin,
            layout,
            rotary_mode,
        )
        return query_out.flatten(-2), key_out.flatten(-2)
    query_out, key_out = FORWARD(query, key, cos, sin, layout, rotary_mode)
    return query_out, key_out
