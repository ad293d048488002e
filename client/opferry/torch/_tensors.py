"""From torch's tensors to the SDK's arrays and back, on the same memory where that can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd import forward_ad

from opferry.core.dtypes import DType, not_allowed
from opferry.core.layouts import Layout, layout_number
from opferry.core.problems import (
    ACLNN_ERR_PARAM_INVALID,
    ACLNN_ERR_PARAM_NULLPTR,
    Problem,
    Reason,
)
from opferry.core.tensors import TensorSpec, malformed
from opferry.errors import NotDifferentiableError, OpFerryError, from_problem

_DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}

MOST_SPREAD = 2
"""A view that is spread over more than so many times its own elements is packed before it is sent:
the gaps would take more of the wire than the data."""


def check_tensors(tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """Check that tensors can be an operator's inputs and return the device that all of them are on.

    Raises:
        Problem: DTYPE_NOT_ALLOWED, or TENSOR_MALFORMED for another device than the first tensor's,
            or a tensor that is sparse, nested or of another layout of torch.
    """
    first, device = next((name, tensor.device) for name, tensor in tensors.items())
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise malformed(name, f"has torch's layout {tensor.layout}; give a strided tensor")
        if tensor.dtype not in _DTYPES:
            raise not_allowed(name, str(tensor.dtype).removeprefix("torch."))
        if tensor.device != device:
            raise Problem(
                Reason.TENSOR_MALFORMED,
                f"{name} is on {tensor.device}, {first} on {device}; give all tensors on one "
                "device",
                argument=name,
                given=str(tensor.device),
                allowed=str(device),
            )
    return device


def check_given(tensors: Mapping[str, object]) -> None:
    """Check that each of the tensors that an operator needs is one.

    Raises:
        RequestError: naming the first that is none.
    """
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            continue
        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise from_problem(
            Problem(
                Reason.INPUT_MISSING if tensor is None else Reason.TENSOR_MALFORMED,
                f"{name} is {'absent' if tensor is None else f'a {kind}'}; give a torch.Tensor",
                argument=name,
                given=kind,
                allowed="torch.Tensor",
                aclnn_status=ACLNN_ERR_PARAM_NULLPTR if tensor is None else None,
            )
        )


def refuse_tangents(*tensors: torch.Tensor | None) -> None:
    """Refuse tensors of forward-mode differentiation: torch would take their tangents for zero.

    Raises:
        NotDifferentiableError: if one has a tangent.
    """
    if forward_ad._current_level >= 0 and any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
        for tensor in tensors
    ):
        raise NotDifferentiableError(
            "there is no forward-mode derivative; differentiate backward", argument="tangent"
        )


def number_of(layout: int | str) -> int:
    """Return the number of a layout, as the backward operator takes it in torch.

    Raises:
        ContractError: for a name that is no layout.
    """
    try:
        return layout_number(layout)
    except Problem as problem:
        raise from_problem(problem) from problem


def name_of(layout: int | str) -> str:
    """Return the name of a layout, as the forward operator takes it in torch.

    Raises:
        ContractError: for a number that is no layout.
    """
    if isinstance(layout, str):
        return layout
    number = number_of(layout)
    if number not in [int(each) for each in Layout]:
        allowed = ", ".join(f"{int(each)} ({each.name})" for each in Layout)
        raise from_problem(
            Problem(
                Reason.ENUM_UNKNOWN,
                f"layout {number} is unknown; give {allowed}",
                argument="layout",
                given=str(number),
                allowed=allowed,
                aclnn_status=ACLNN_ERR_PARAM_INVALID,
            )
        )
    return Layout(number).name


def width_of_heads(query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor) -> int:
    """Return D of query and key of shape (B, S, N * D): the last axis of cos.

    Raises:
        ContractError: if cos has not four axes, or query or key is no whole number of heads.
    """
    if cos.dim() != 4:
        raise _shape_error("cos", cos, "4 axes: query and key have 3, as (B, S, N * D)")
    width = cos.shape[-1]
    for name, tensor in (("query", query), ("key", key)):
        if not width or tensor.shape[-1] % width:
            raise _shape_error(name, tensor, f"a multiple of D = {width}, the last axis of cos")
    return width


def _shape_error(name: str, tensor: torch.Tensor, allowed: str) -> OpFerryError:
    problem = Problem(
        Reason.SHAPE_MISMATCH,
        f"{name} has shape {list(tensor.shape)}; layout BSH needs {allowed}",
        argument=name,
        given=str(list(tensor.shape)),
        allowed=allowed,
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
    )
    return from_problem(problem)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Return what a checked tensor is, by shape and dtype alone."""
    return TensorSpec(_DTYPES[tensor.dtype], tuple(tensor.shape))


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a checked tensor as an array, with the tensor's strides over the tensor's memory.

    It is a copy if the tensor is on another device than the CPU, or has more gaps than data. A
    lazily negated one torch has made a plain one of, before it calls a kernel.
    """
    plain = tensor.detach().cpu()
    if _spread(plain) > MOST_SPREAD * plain.numel():
        plain = plain.contiguous()
    if plain.dtype is torch.bfloat16:
        # numpy knows it by ml_dtypes, which torch does not know
        bits: NDArray[Any] = plain.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: NDArray[Any] = plain.numpy()
    return array


def tensor_of(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return a contiguous, writable array as a tensor; on the CPU it is the array's memory."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def _spread(tensor: torch.Tensor) -> int:
    """Return how many elements of memory there are from a tensor's first to its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((extent - 1) * step for extent, step in steps)
