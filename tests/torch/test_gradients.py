"""Gradients through the remote backward operator: right, and only those that are needed."""

from __future__ import annotations

import threading
from itertools import product

import pytest
import torch

import opferry.torch
from opferry.errors import NotDifferentiableError
from tests.torch.tensors import LAYOUTS, rotate, shape
from tests.torch.watching import WatchedClient

FORWARD, GRAD = "ApplyRotaryPosEmb", "ApplyRotaryPosEmbGrad"
SIZES = {"B": 2, "S": 3, "T": 5, "D": 8}

STEP = 1e-2
"""Of numerical differentiation in float32. The operator is linear in query and key, and in cos and
sin, so central differences have no error of the second order: the step may be large, which keeps
what float32 rounds of it, 2**-24 of values up to about 4 and divided by twice the step, below
2e-5."""

TOLERANCE = 1e-3
"""Of gradcheck, absolute, for sums of up to 60 such differences."""


def inputs(
    layout: str, batches: int = 1, table: int = 8, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return leaves that all want gradients; more query than key heads, halves that differ."""
    generator = torch.Generator().manual_seed(len(layout) + batches + table)
    heads = {"query": SIZES | {"N": 4}, "key": SIZES | {"N": 2}}
    tables = dict.fromkeys(("cos", "sin"), SIZES | {"B": batches, "N": 1, "D": table})
    return {
        name: torch.randn(shape(layout, **sizes), generator=generator).to(dtype).requires_grad_()
        for name, sizes in (heads | tables).items()
    }


CASES = [
    pytest.param(layout, batches, table, id=f"{layout}-{batches}-{table}")
    for layout, batches, table in product(LAYOUTS, (1, 2), (8, 4))
    if layout != "TND" or batches == 1
]


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double:UserWarning")
@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize(("layout", "batches", "table"), CASES)
def test_gradcheck(
    watched: WatchedClient, layout: str, batches: int, table: int, fast: bool
) -> None:
    """The check of torch by numerical differentiation passes, in float32, for all four inputs.

    The fast one takes a random direction, the other each element by itself.
    """
    leaves = inputs(layout, batches, table)
    assert torch.autograd.gradcheck(
        lambda *tensors: opferry.torch.apply_rotary_pos_emb(*tensors, layout),
        tuple(leaves.values()),
        eps=STEP,
        atol=TOLERANCE,
        rtol=TOLERANCE,
        fast_mode=fast,
    )


def both(
    leaves: dict[str, torch.Tensor], layout: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return outputs and gradients of the operators, and those of the formula in float64."""
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    ours = opferry.torch.apply_rotary_pos_emb(**leaves, layout=layout)
    theirs = rotate(**exact)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in ours]
    found = torch.autograd.grad(ours, list(leaves.values()), weights)
    wanted = torch.autograd.grad(theirs, list(exact.values()), [each.double() for each in weights])
    return [*ours, *found], [*theirs, *wanted]


# Of float32: three operations, each off by 2**-24 of values up to about 10, and sums of up to 36
# products. The 16-bit types are rounded once at the end, on the way the operators take: the formula
# in float64 has the same inputs.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("layout", "batches", "table"), CASES)
def test_the_published_formulas_agree(
    watched: WatchedClient, layout: str, batches: int, table: int, dtype: torch.dtype
) -> None:
    """The backward operator gives what torch's autograd makes of the forward formula."""
    found, wanted = both(inputs(layout, batches, table, dtype), layout)
    assert watched.names[0][0] == FORWARD
    assert watched.names[1:] == [
        (GRAD, ("grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key"))
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(
            ours.double(), theirs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
        )


@pytest.mark.full
def test_the_formulas_agree_on_every_backend(any_server: str) -> None:
    """So they do where views reach aclnn, or torch_npu, as views."""
    with opferry.torch.using(any_server):
        for case in CASES:
            layout, batches, table = case.values
            found, wanted = both(inputs(layout, batches, table), layout)
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_bsh(watched: WatchedClient) -> None:
    """BSH is BSND, and where heads and width are one axis, that axis is looked at as two."""
    leaves = inputs("BSND")
    found, wanted = both(leaves, "BSH")
    flat = {name: leaves[name].detach().flatten(-2).requires_grad_() for name in ("query", "key")}
    query, key = opferry.torch.apply_rotary_pos_emb(
        flat["query"], flat["key"], leaves["cos"], leaves["sin"], layout="BSH"
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(query, found[0].flatten(-2))
    assert torch.equal(key, found[1].flatten(-2))
    (query.sum() + key.sum()).backward()
    assert flat["query"].grad is not None
    assert flat["query"].grad.shape == flat["query"].shape


def test_views_of_the_backward_are_not_copied(watched: WatchedClient) -> None:
    """BNSD is transposed, and of a partial embedding a part is sent, without a copy of either."""
    leaves = inputs("BNSD", table=4)
    query, key = opferry.torch.apply_rotary_pos_emb(**leaves, layout="BNSD")
    weights = torch.randn(query.shape), torch.randn(key.shape)
    torch.autograd.grad((query, key), list(leaves.values()), weights)
    call = watched.calls[1].call
    expected = dict(zip(("grad_query_embed", "grad_key_embed"), weights, strict=True))
    expected |= {"query": leaves["query"], "key": leaves["key"]}
    for name, tensor in expected.items():
        view = tensor.transpose(1, 2)[..., :4]
        assert call.inputs[name].shape == tuple(view.shape)
        assert call.inputs[name].full_strides == view.stride()


NEEDED = [
    pytest.param({"query", "key"}, False, id="query-key"),
    pytest.param({"query"}, False, id="query"),
    pytest.param({"key"}, False, id="key"),
    pytest.param({"cos"}, True, id="cos"),
    pytest.param({"query", "sin"}, True, id="query-sin"),
]


@pytest.mark.parametrize(("needed", "tables"), NEEDED)
def test_only_what_is_needed(watched: WatchedClient, needed: set[str], tables: bool) -> None:
    """Without gradients of cos and sin, query and key are neither kept nor sent."""
    leaves = inputs("BSND")
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in needed)
    query, key = opferry.torch.apply_rotary_pos_emb(**leaves)
    assert len(query.grad_fn.saved_tensors) == (4 if tables else 2)
    (query * 2).sum().add(key.sum()).backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is not None} == needed
    (_, (_, names)) = watched.names
    assert ("query" in names) is tables
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    theirs = rotate(**exact)
    (theirs[0] * 2).sum().add(theirs[1].sum()).backward()
    for name in needed:
        torch.testing.assert_close(
            leaves[name].grad.double(), exact[name].grad, rtol=1e-5, atol=1e-5
        )


def test_nothing_is_needed(watched: WatchedClient) -> None:
    """Without a leaf that wants a gradient, and without grad mode, there is no graph."""
    leaves = inputs("BSND")
    with torch.no_grad():
        query, _ = opferry.torch.apply_rotary_pos_emb(**leaves)
    assert not query.requires_grad
    plain = {name: leaf.detach() for name, leaf in leaves.items()}
    assert not opferry.torch.apply_rotary_pos_emb(**plain)[0].requires_grad


def test_an_output_that_is_not_used_costs_one_element(watched: WatchedClient) -> None:
    """It has no gradient, and what stands for it is sent as a view of one zero."""
    leaves = inputs("BSND")
    query, _ = opferry.torch.apply_rotary_pos_emb(**leaves)
    query.sum().backward()
    assert watched.calls[1].call.inputs["grad_key_embed"].data_bytes == 4
    assert leaves["key"].grad is None
    assert leaves["cos"].grad is not None


@pytest.mark.parametrize("name", ["query", "cos"])
def test_what_takes_no_part_spoils_nothing(watched: WatchedClient, name: str) -> None:
    """Infinity in the query, or in the table, and a loss of the key alone: as torch has it."""
    leaves, plain = inputs("BSND"), {}
    with torch.no_grad():
        leaves[name][0, 0, 0, 0] = torch.inf
    for each, leaf in leaves.items():
        plain[each] = leaf.detach().clone().requires_grad_()
    _, key = opferry.torch.apply_rotary_pos_emb(**leaves)
    key.nansum().backward()
    rotated = torch.cat((-plain["key"].chunk(2, -1)[1], plain["key"].chunk(2, -1)[0]), -1)
    (plain["key"] * plain["cos"] + rotated * plain["sin"]).nansum().backward()
    assert leaves["query"].grad is None
    for each in ("key", "cos", "sin"):
        torch.testing.assert_close(leaves[each].grad, plain[each].grad, equal_nan=True)


@pytest.mark.parametrize("mode", ["interleave", "quarter"])
def test_other_modes_have_no_backward(watched: WatchedClient, mode: str) -> None:
    """They are computed, and their backward says that it is not there before anything is sent."""
    leaves = inputs("BSND")
    query, _ = opferry.torch.apply_rotary_pos_emb(**leaves, rotary_mode=mode)
    with pytest.raises(NotDifferentiableError, match=f"rotary_mode {mode} has no derivative"):
        query.sum().backward()
    assert [name for name, _ in watched.names] == [FORWARD]


def test_there_is_no_second_derivative(watched: WatchedClient) -> None:
    """Asked for, it is refused, as a ValueError and as the RuntimeError that torch's users expect.

    That of the backward operator itself is the same.
    """
    leaves = inputs("BSND")
    query, _ = opferry.torch.apply_rotary_pos_emb(**leaves)
    (grad,) = torch.autograd.grad(query.square().sum(), leaves["query"], create_graph=True)
    for kind in (NotDifferentiableError, RuntimeError, ValueError):
        with pytest.raises(kind, match="has no derivative"):
            grad.sum().backward(retain_graph=True)
    gradient = torch.ones(2, 3, 4, 8, requires_grad=True)
    table = torch.ones(1, 3, 1, 8)
    found = opferry.torch.apply_rotary_pos_emb_grad(gradient, gradient, table, table)
    with pytest.raises(NotDifferentiableError, match="create_graph"):
        found[0].sum().backward()


# of torch's own code
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_is_refused(watched: WatchedClient) -> None:
    """A tangent is not taken for zero; a dual tensor without one is as any other."""
    ones = torch.ones(1, 2, 1, 8)

    def query_of(query: torch.Tensor) -> torch.Tensor:
        return opferry.torch.apply_rotary_pos_emb(query, ones, ones, ones)[0]

    with pytest.raises(NotDifferentiableError, match="forward-mode"):
        torch.func.jvp(query_of, (ones,), (ones,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(ones, ones)
        with pytest.raises(NotDifferentiableError, match="forward-mode"):
            opferry.torch.apply_rotary_pos_emb_grad(ones, ones, ones, ones, query=dual, key=ones)
        assert query_of(ones).shape == ones.shape


def test_the_vendors_signature_and_nones(watched: WatchedClient) -> None:
    """The last two results are None without query and key."""
    ones = torch.ones(1, 2, 1, 8)
    found = opferry.torch.apply_rotary_pos_emb_grad(ones, ones, ones, ones)
    assert found[2:] == (None, None)
    found = opferry.torch.apply_rotary_pos_emb_grad(
        ones, ones, ones, ones, query=ones, key=ones, rotary_mode="half", layout=2
    )
    assert all(each is not None and each.shape == ones.shape for each in found)


def test_backward_runs_where_forward_ran(watched: WatchedClient, cpu_server: str) -> None:
    """After the block, and in another thread, the server of the block is asked."""
    leaves = inputs("BSND")
    with WatchedClient.connect(cpu_server) as other:
        with opferry.torch.using(other):
            query, key = opferry.torch.apply_rotary_pos_emb(**leaves)
        loss = query.sum() + key.sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        assert [name for name, _ in other.names] == [FORWARD, GRAD]
    assert not watched.calls
    assert leaves["sin"].grad is not None
