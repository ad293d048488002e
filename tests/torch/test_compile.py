"""The operators in torch's own tools: opcheck, fake tensors, torch.compile, torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import opferry.torch
from opferry.errors import ContractError
from tests.torch.tensors import draw
from tests.torch.watching import WatchedClient

FORWARD = torch.ops.opferry.apply_rotary_pos_emb.default
GRAD = torch.ops.opferry.apply_rotary_pos_emb_grad.default
CHECKED = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def leaves(batch: int = 2, **others: Any) -> tuple[torch.Tensor, ...]:
    """Return query, key, cos and sin that want gradients."""
    generator = torch.Generator().manual_seed(batch)
    shapes = ((batch, 3, 4, 8), (batch, 3, 2, 8), (1, 3, 1, 8), (1, 3, 1, 8))
    return tuple(
        torch.randn(shape, generator=generator, **others).requires_grad_() for shape in shapes
    )


@pytest.mark.parametrize("grads", [True, False])
def test_opcheck_forward(watched: WatchedClient, grads: bool) -> None:
    """Schema, derivative, fake tensors and dynamic shapes are as torch wants them."""
    given = tuple(leaf.requires_grad_(grads) for leaf in leaves())
    assert torch.library.opcheck(FORWARD, given) == dict.fromkeys(CHECKED, "SUCCESS")


@pytest.mark.parametrize("pair", [True, False], ids=["with-query", "without"])
def test_opcheck_grad(watched: WatchedClient, pair: bool) -> None:
    """So are those of the backward operator, with and without its optional inputs."""
    query, key, cos, sin = (leaf.detach() for leaf in leaves())
    named = {"query": query, "key": key} if pair else {}
    assert torch.library.opcheck(GRAD, (query, key, cos, sin), named) == dict.fromkeys(
        CHECKED, "SUCCESS"
    )


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "forward"])
def test_fake_tensors(grad: bool) -> None:
    """Shapes, dtypes and strides of fake results are those of real ones; no server is asked."""
    for seed in range(20):
        tensors, attributes, _ = draw(seed, grad=grad)
        mode = FakeTensorMode()
        # of what a lazily negated tensor is, torch makes no fake
        fakes = {name: mode.from_tensor(tensor.resolve_neg()) for name, tensor in tensors.items()}
        with mode:
            found = (GRAD if grad else FORWARD)(**fakes, **attributes)
        likes = [tensors[name] for name in (list(tensors) if not grad else [*tensors][:4])]
        for fake, like in zip(found, likes, strict=False):
            if fake is None:
                assert "query" not in tensors
                continue
            assert (fake.shape, fake.dtype, fake.device) == (like.shape, like.dtype, like.device)
            assert fake.is_contiguous()


def test_tensors_of_the_meta_device() -> None:
    """Without data the contract is checked as with data, and there is no server to ask."""
    query, key, cos, sin = leaves(device="meta")
    found, _ = opferry.torch.apply_rotary_pos_emb(query, key, cos, sin)
    assert found.device.type == "meta"
    assert found.requires_grad
    with pytest.raises(ContractError, match="key has width D = 6"):
        opferry.torch.apply_rotary_pos_emb(query, key[..., :6], cos, sin)


def loss(*given: torch.Tensor) -> torch.Tensor:
    query, key = opferry.torch.apply_rotary_pos_emb(given[0] * 2, *given[1:])
    return query.square().sum() + key.sin().sum()


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)]


# of torch's own code
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(watched: WatchedClient, backend: str) -> None:
    """A compiled function has no break around the operators, also where sizes change."""
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for batch in (2, 3, 5):
        given = leaves(batch)
        wanted = torch.autograd.grad(loss(*given), given)
        found = torch.autograd.grad(compiled(*given), given)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs)
    torch.compiler.reset()


def test_compile_the_backward_operator(watched: WatchedClient) -> None:
    """By the vendor's signature, with and without query and key."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(query: torch.Tensor, key: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        first = opferry.torch.apply_rotary_pos_emb_grad(query, key, table, table)
        assert first[2] is None
        return opferry.torch.apply_rotary_pos_emb_grad(
            first[0], first[1], table, table, query=query, key=key
        )[2]

    query, key, cos, _ = (leaf.detach() for leaf in leaves())
    first = opferry.torch.apply_rotary_pos_emb_grad(query, key, cos, cos)
    wanted = opferry.torch.apply_rotary_pos_emb_grad(*first[:2], cos, cos, query=query, key=key)
    assert torch.equal(compiled(query, key, cos), wanted[2])
    torch.compiler.reset()


def test_what_a_compiler_says_of_a_broken_rule(watched: WatchedClient) -> None:
    """The error is wrapped into torch's own RuntimeError, which has our words."""
    query, key, cos, sin = (leaf.detach() for leaf in leaves())
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="key has width D = 6"):
        compiled(query, key[..., :6], cos, sin)
    torch.compiler.reset()
    assert not watched.calls


class Module(torch.nn.Module):
    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return opferry.torch.apply_rotary_pos_emb(*given)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_export(watched: WatchedClient, dynamic: bool) -> None:
    """An exported program has the operator as a node, and computes the same."""
    given = tuple(leaf.detach() for leaf in leaves())
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"given": ({0: batch}, {0: batch}, {}, {})} if dynamic else None
    program = torch.export.export(Module(), given, dynamic_shapes=shapes)
    assert FORWARD in [node.target for node in program.graph.nodes]
    larger = tuple(leaf.detach() for leaf in leaves(5)) if dynamic else given
    for ours, theirs in zip(program.module()(*larger), Module()(*larger), strict=True):
        assert torch.equal(ours, theirs)
