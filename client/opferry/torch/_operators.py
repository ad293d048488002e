"""The operators as torch knows them: their schemas, their kernels, and what is known without data.

One kernel serves the tensors of all devices. The derivatives are in `_autograd`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opferry import _calls
from opferry.core.problems import Problem
from opferry.errors import from_problem
from opferry.operators import OPERATORS
from opferry.torch._choice import current
from opferry.torch._tensors import (
    array_of,
    check_tensors,
    refuse_tangents,
    spec_of,
    tensor_of,
)

LIBRARY = torch.library.Library("opferry", "DEF")
"""What is registered goes with it."""

SCHEMAS = (
    # The vendor's query and key come by name alone; so they could have no derivative here.
    "apply_rotary_pos_emb_grad(Tensor grad_query_embed, Tensor grad_key_embed, Tensor cos, "
    'Tensor sin, Tensor? query=None, Tensor? key=None, str rotary_mode="half", int layout=1)'
    " -> (Tensor, Tensor, Tensor?, Tensor?)",
    'apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, str layout="BSND", '
    'str rotary_mode="half") -> (Tensor, Tensor)',
)

Compute = Callable[[str, dict[str, torch.Tensor], dict[str, Any]], dict[str, torch.Tensor]]
"""Returns an operator's outputs for its inputs and attributes, all by name."""


def on_server(
    name: str, tensors: dict[str, torch.Tensor], attributes: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Compute outputs on the server that was chosen.

    Raises:
        OpFerryError: as the client's method.
    """
    try:
        device = check_tensors(tensors)
    except Problem as problem:
        raise from_problem(problem) from problem
    refuse_tangents(*tensors.values())  # for whoever calls torch.ops
    operator = OPERATORS[name]
    call = getattr(current(), operator.python_name)
    arrays = {name: array_of(tensor) for name, tensor in tensors.items()}
    result = call(**arrays, **attributes, keep_strides=True, copy=True)
    return {
        output.name: tensor_of(getattr(result, output.name), device)
        for output in operator.present_outputs(tensors)
    }


def without_data(
    name: str, tensors: dict[str, torch.Tensor], attributes: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Return empty outputs, and check the contract where all sizes are known.

    Raises:
        OpFerryError: a RequestError, if the call breaks the contract.
    """
    try:
        check_tensors(tensors)
        OPERATORS[name].parse_attributes(attributes)
    except Problem as problem:
        raise from_problem(problem) from problem
    # a size that torch.compile keeps open is no int
    if all(type(extent) is int for tensor in tensors.values() for extent in tensor.shape):
        specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
        _calls.prepare_plan(name, specs, attributes, "")
    outputs = OPERATORS[name].present_outputs(tensors)
    return {output.name: _empty(tensors[output.like]) for output in outputs}


def _empty(like: torch.Tensor) -> torch.Tensor:
    # contiguous, as results are, whatever the strides of what they are like
    return like.new_empty(like.shape)


def _grad(compute: Compute) -> Callable[..., tuple[torch.Tensor | None, ...]]:
    def grad(
        grad_query_embed: torch.Tensor,
        grad_key_embed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        query: torch.Tensor | None = None,
        key: torch.Tensor | None = None,
        rotary_mode: str = "half",
        layout: int = 1,
    ) -> tuple[torch.Tensor | None, ...]:
        given = _calls.rotary_grad_inputs(grad_query_embed, grad_key_embed, cos, sin, query, key)
        tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
        attributes = {"rotary_mode": rotary_mode, "layout": layout}
        found = compute("ApplyRotaryPosEmbGrad", tensors, attributes)
        return tuple(map(found.get, ("grad_query", "grad_key", "grad_cos", "grad_sin")))

    return grad


def _forward(compute: Compute) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def forward(
        query: torch.Tensor,
        key: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layout: str = "BSND",
        rotary_mode: str = "half",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = {"query": query, "key": key, "cos": cos, "sin": sin}
        attributes = {"rotary_mode": rotary_mode, "layout": layout}
        found = compute("ApplyRotaryPosEmb", tensors, attributes)
        return found["query_out"], found["key_out"]

    return forward


for schema, kernel in zip(SCHEMAS, (_grad, _forward), strict=True):
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    python_name = schema.partition("(")[0]
    LIBRARY.impl(python_name, kernel(on_server), "CompositeExplicitAutograd")
    torch.library.register_fake(f"opferry::{python_name}", kernel(without_data), lib=LIBRARY)

FORWARD: Any = torch.ops.opferry.apply_rotary_pos_emb.default
"""The forward operator."""

GRAD: Any = torch.ops.opferry.apply_rotary_pos_emb_grad.default
"""The backward operator."""
