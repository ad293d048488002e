"""Torch's tensors: the bits of the numpy path, on the tensors' own memory."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import opferry
import opferry.torch
from opferry.errors import ContractError, NotDifferentiableError, RequestError
from tests.support.servers import embedded
from tests.torch.tensors import DTYPES, GRAD_LAYOUTS, LAYOUTS, VIEWS, draw, packed_array
from tests.torch.watching import WatchedClient, address

CALLS = 200


@pytest.mark.parametrize("name", ["apply_rotary_pos_emb", "apply_rotary_pos_emb_grad"])
def test_the_bits_of_the_numpy_path(watched: WatchedClient, name: str) -> None:
    """Random shapes, layouts, dtypes and views have the bits that packed numpy arrays have."""
    seen = set()
    for seed in range(CALLS):
        tensors, attributes, used = draw(seed, grad=name.endswith("grad"))
        seen |= used
        found = getattr(opferry.torch, name)(**tensors, **attributes)
        arrays = {input_name: packed_array(tensor) for input_name, tensor in tensors.items()}
        wanted = getattr(watched, name)(**arrays, **attributes)
        for ours, theirs in zip(found, wanted, strict=True):
            if theirs is None:
                assert ours is None, seed
                continue
            assert ours.is_contiguous(), seed
            assert packed_array(ours).dtype == theirs.dtype, seed
            assert packed_array(ours).tobytes() == theirs.tobytes(), seed
    layouts = GRAD_LAYOUTS if name.endswith("grad") else LAYOUTS
    assert seen >= {*DTYPES, *VIEWS, *layouts}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [2, 64], ids=["small", "large"])
def test_contiguous_tensors_are_sent_from_where_they_are(
    watched: WatchedClient, dtype: torch.dtype, heads: int
) -> None:
    """What the transport is given is the tensor's own memory, of whatever size and dtype."""
    gradient = torch.randn(2, 32, heads, 128).to(dtype)
    table = torch.randn(1, 32, 1, 128).to(dtype)
    opferry.torch.apply_rotary_pos_emb_grad(gradient, gradient, table, table)
    (call,) = watched.calls
    for name in ("grad_query_embed", "grad_key_embed"):
        assert address(call, name) == gradient.data_ptr()
    assert address(call, "cos") == table.data_ptr()


def test_views_are_sent_as_views(watched: WatchedClient) -> None:
    """Transposed, expanded, offset and sliced tensors keep their strides over their own memory."""
    query = torch.randn(2, 3, 4, 8).transpose(1, 2)
    key = torch.randn(2, 4, 6, 8)[:, :, 3:]
    table = torch.randn(4, 1, 8).expand(2, 4, 1, 8)
    opferry.torch.apply_rotary_pos_emb(query, key, table, table)
    (call,) = watched.calls
    for name, tensor in (("query", query), ("key", key), ("cos", table)):
        spec = call.call.inputs[name]
        # numpy leaves out the stride of an axis of one element
        assert [
            step for step, extent in zip(spec.full_strides, spec.shape, strict=True) if extent > 1
        ] == [
            step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1
        ]
        assert address(call, name) == tensor.data_ptr()
    assert call.call.inputs["cos"].data_bytes == 4 * 4 * 8


def test_a_view_with_more_gaps_than_data_is_packed(watched: WatchedClient) -> None:
    """A few elements of each wide row do not take the rows along."""
    wide = torch.randn(2, 4, 3, 64)
    table = torch.randn(1, 4, 1, 8)
    part = wide[..., :8]
    opferry.torch.apply_rotary_pos_emb_grad(part, part, table, table)
    (call,) = watched.calls
    assert call.call.inputs["grad_query_embed"].data_bytes == 4 * part.numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_the_callers_own(watched: WatchedClient, dtype: torch.dtype) -> None:
    """Results may be changed, whether they came in a message or through shared memory."""
    for heads in (2, 64):
        gradient = torch.ones(2, 32, heads, 128, dtype=dtype)
        table = torch.ones(1, 32, 1, 128, dtype=dtype)
        grads = opferry.torch.apply_rotary_pos_emb_grad(
            gradient, gradient, table, table, query=gradient, key=gradient
        )
        for grad in grads:
            assert grad is not None
            assert grad.dtype is dtype
            grad.add_(1)
        assert torch.equal(gradient, torch.ones_like(gradient))


def test_a_client_that_is_closed_leaves_results_as_they_are(cpu_server: str) -> None:
    """The memory of a result outlives its client."""
    ones = torch.ones(2, 64, 32, 128)
    table = torch.ones(1, 64, 1, 128)
    with opferry.connect(cpu_server) as client, opferry.torch.using(client):
        query, key = opferry.torch.apply_rotary_pos_emb(ones, ones, table, table)
    assert torch.equal(query, key)
    assert query.unique().tolist() == [0, 2]


REFUSED = {
    "dtype float64": ({"cos": torch.ones(1, 3, 1, 8, dtype=torch.float64)}, "float64"),
    "another dtype": ({"sin": torch.ones(1, 3, 1, 8).half()}, "sin has dtype float16"),
    "a shape": ({"key": torch.ones(2, 3, 2, 6)}, "key has width D = 6"),
    "an empty tensor": ({"query": torch.ones(2, 0, 4, 8)}, "query"),
    "another device": ({"key": torch.ones(2, 3, 2, 8, device="meta")}, "key is on meta, query on"),
    "a sparse tensor": ({"query": torch.ones(2, 3, 4, 8).to_sparse()}, "torch.sparse_coo"),
    "a layout": ({"layout": "NTD"}, "NTD"),
    "a mode": ({"rotary_mode": "third"}, "third"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(watched: WatchedClient, case: str) -> None:
    """What cannot be served is a ValueError that names the argument, and nothing is sent."""
    changed, words = REFUSED[case]
    table = torch.ones(1, 3, 1, 8)
    given = {"query": torch.ones(2, 3, 4, 8), "key": torch.ones(2, 3, 2, 8)}
    with pytest.raises(ValueError, match=words) as caught:
        opferry.torch.apply_rotary_pos_emb(**{**given, "cos": table, "sin": table, **changed})
    assert isinstance(caught.value, opferry.errors.RequestError)
    assert caught.value.argument in {*changed, "sin"}
    assert not watched.calls


def test_the_servers_errors_are_runtime_errors() -> None:
    """What fails on the server comes as the SDK's own error, with its fields."""
    ones = torch.ones(1, 2, 1, 8)
    with (
        embedded("LongErrorBackend") as server,
        opferry.torch.using(server.address),
        pytest.raises(RuntimeError, match="OPERATOR_FAILED") as caught,
    ):
        opferry.torch.apply_rotary_pos_emb(ones, ones, ones, ones)
    assert isinstance(caught.value, opferry.errors.OperatorError)
    assert caught.value.aclnn_status == 561002


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"query": torch.ones(1, 2, 10)}, "query"),
        ({"key": torch.ones(1, 2, 12)}, "key"),
        ({"cos": torch.ones(2, 1, 8)}, "cos"),
        ({"cos": torch.ones(1, 2, 1, 0)}, "query"),
    ],
)
def test_heads_that_are_not_whole(
    watched: WatchedClient, changes: dict[str, torch.Tensor], argument: str
) -> None:
    """Query and key as (B, S, N * D), where D is the last axis of cos."""
    table = torch.ones(1, 2, 1, 8)
    given = {"query": torch.ones(1, 2, 16), "key": torch.ones(1, 2, 8), "cos": table, "sin": table}
    with pytest.raises(ContractError, match="layout BSH needs") as caught:
        opferry.torch.apply_rotary_pos_emb(**(given | changes), layout="BSH")
    assert (caught.value.argument, caught.value.aclnn_status) == (argument, 161002)
    assert not watched.calls


def test_what_is_no_tensor(watched: WatchedClient) -> None:
    """Absent, as the vendor's first stage says it; or of another kind."""
    one = torch.ones(1, 2, 1, 8)
    with pytest.raises(ContractError, match="key is absent") as caught:
        opferry.torch.apply_rotary_pos_emb(one, None, one, one)  # type: ignore[arg-type]
    assert caught.value.aclnn_status == 161001
    with pytest.raises(RequestError, match=r"cos is a numpy\.ndarray"):
        opferry.torch.apply_rotary_pos_emb_grad(one, one, one.numpy(), one)  # type: ignore[arg-type]
    assert not watched.calls


# torch's own, of the first tangent in a process
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_tangent_given_to_the_operator_itself(watched: WatchedClient) -> None:
    """Not only the functions refuse it: torch would take it for zero."""
    one = torch.ones(1, 2, 1, 8)
    with forward_ad.dual_level(), pytest.raises(NotDifferentiableError, match="forward-mode"):
        torch.ops.opferry.apply_rotary_pos_emb(forward_ad.make_dual(one, one), one, one, one)
    assert not watched.calls


def test_layouts_by_number_and_by_name(watched: WatchedClient) -> None:
    """As with numpy; what is no layout is refused in the contract's words."""
    one = torch.ones(1, 2, 1, 8)
    for layout in (1, "BSND", "bsnd"):
        opferry.torch.apply_rotary_pos_emb(one, one, one, one, layout=layout)
        opferry.torch.apply_rotary_pos_emb_grad(one, one, one, one, layout=layout)
    assert {call.call.attributes.layout for call in watched.calls} == {1}
    for function in (opferry.torch.apply_rotary_pos_emb, opferry.torch.apply_rotary_pos_emb_grad):
        for wrong in (9, "XXXX"):
            with pytest.raises(ContractError, match="is unknown") as caught:
                function(one, one, one, one, layout=wrong)
            assert caught.value.argument == "layout"
