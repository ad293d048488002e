"""Calls whose results were worked out by hand, through a real server."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from tests.support.calls import assert_agrees, reference, tnd

BF16 = ml_dtypes.bfloat16
F32 = np.float32


def full(shape: tuple[int, ...], value: Any, dtype: Any = F32) -> np.ndarray:
    return np.full(shape, value, dtype)


def bits16(array: np.ndarray) -> list[int]:
    return array.reshape(-1).view(np.uint16).tolist()


def test_without_query_and_key_there_are_two_gradients(any_client: opferry.Client) -> None:
    """grad_cos and grad_sin are absent, not zeros, when query and key are not given."""
    result = any_client.apply_rotary_pos_emb_grad(**tnd(with_query=False))
    dq, dk, dcos, dsin = result
    assert dq is result.grad_query is result.dq
    assert dk is result.grad_key is result.dk
    assert dcos is None
    assert dsin is None
    assert result.dcos is None
    assert result.dsin is None
    assert len(result) == 4
    assert result.execution.download_bytes == dq.nbytes + dk.nbytes


@pytest.mark.parametrize("lonely", ["query", "key"])
def test_query_and_key_come_together(any_client: opferry.Client, lonely: str) -> None:
    """One of query and key without the other is refused, by the SDK and by the server."""
    arguments = tnd()
    del arguments["key" if lonely == "query" else "query"]
    with pytest.raises(errors.ContractError, match=f"{lonely} is given without") as caught:
        any_client.apply_rotary_pos_emb_grad(**arguments)
    assert caught.value.aclnn_status == 161002
    with pytest.raises(errors.ContractError) as refused:
        any_client.apply_rotary_pos_emb_grad(**arguments, check=False)
    assert refused.value.aclnn_status == 161002
    assert refused.value.request_id


def test_gradients_of_broadcast_cos_are_summed_over_the_batch(any_client: opferry.Client) -> None:
    """B = 3 with Bc = 1: the published numbers 99, 132 and -132, 99."""
    q = np.array([[1, 2], [3, 4], [5, 6]], F32).reshape(3, 1, 1, 2)
    ones, zeros = full((1, 1, 1, 2), 1), full((1, 1, 1, 2), 0)
    result = any_client.apply_rotary_pos_emb_grad(
        full((3, 1, 1, 2), 1), full((3, 1, 1, 2), 10), ones, zeros, query=q, key=q, layout=1
    )
    assert result.grad_cos is not None
    assert result.grad_sin is not None
    assert result.grad_cos.shape == (1, 1, 1, 2)
    assert result.grad_cos.ravel().tolist() == [99, 132]
    assert result.grad_sin.ravel().tolist() == [-132, 99]


@pytest.mark.parametrize("width", [2, 1024])
def test_the_edges_of_the_width_are_served(any_client: opferry.Client, width: int) -> None:
    """D = 2 and D = 1024 are inside the contract."""
    arguments = tnd(width=width)
    result = any_client.apply_rotary_pos_emb_grad(**arguments)
    assert_agrees(result, reference(arguments))


def _with(shapes: dict[str, tuple[int, ...]], **attributes: Any) -> dict[str, Any]:
    """A BSND call, B 3, S 4, N 2, D 8, in which some shapes and attributes differ."""
    usual = {
        "grad_query_embed": (3, 4, 2, 8),
        "grad_key_embed": (3, 4, 2, 8),
        "cos": (3, 4, 1, 8),
        "sin": (3, 4, 1, 8),
    }
    arrays = {name: full(shapes.get(name, shape), 1) for name, shape in usual.items()}
    return {**arrays, "layout": 1, **attributes}


def _all(last: int) -> dict[str, tuple[int, ...]]:
    return {
        "grad_query_embed": (3, 4, 2, last),
        "grad_key_embed": (3, 4, 2, last),
        "cos": (3, 4, 1, last),
        "sin": (3, 4, 1, last),
    }


_THREE_AXES = {
    name: (4, 1 if name in ("cos", "sin") else 2, 8)
    for name in ("grad_query_embed", "grad_key_embed", "cos", "sin")
}

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "D too large": (_with(_all(1026)), "grad_query_embed", "at most 1024"),
    "D odd": (_with(_all(3)), "grad_query_embed", "even"),
    "layout 0": (_with({}, layout=0), "layout", "not set"),
    "layout 3": (_with({}, layout=3), "layout", "reserved"),
    "layout 5": (_with({}, layout=5), "layout", "unknown"),
    "layout -1": (_with({}, layout=-1), "layout", "unknown"),
    "interleave": (_with({}, rotary_mode="interleave"), "rotary_mode", "only half"),
    "HALF": (_with({}, rotary_mode="HALF"), "rotary_mode", "only half"),
    "empty mode": (_with({}, rotary_mode=""), "rotary_mode", "not set"),
    "TND with four axes": (_with({}, layout=4), "grad_query_embed", "layout TND needs 3"),
    "BSND with three axes": (_with(_THREE_AXES), "grad_query_embed", "layout BSND needs 4"),
    "sin unlike cos": (_with({"sin": (1, 4, 1, 8)}), "sin", "must be equal"),
    "Bc neither 1 nor B": (
        _with({"cos": (2, 4, 1, 8), "sin": (2, 4, 1, 8)}),
        "cos",
        "batch axis B",
    ),
    "S of cos": (_with({"cos": (3, 5, 1, 8), "sin": (3, 5, 1, 8)}), "cos", "sequence axis S"),
    "S of the gradients": (_with({"grad_key_embed": (3, 5, 2, 8)}), "grad_key_embed", "head axis"),
    "N of cos": (_with({"cos": (3, 4, 2, 8), "sin": (3, 4, 2, 8)}), "cos", "head axis N"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_rule_is_named_and_nothing_is_run(any_client: opferry.Client, name: str) -> None:
    """The SDK refuses before it sends; the backend, asked for its own word, with 161002 too."""
    arguments, argument, words = REFUSED[name]
    with pytest.raises(errors.ContractError, match=words) as here:
        any_client.apply_rotary_pos_emb_grad(**arguments)
    assert here.value.argument == argument
    assert here.value.aclnn_status == 161002
    assert here.value.status.name == "INVALID_ARGUMENT"
    assert here.value.request_id == ""
    if name in ("HALF", "empty mode"):  # words that the schema has no number for
        return
    with pytest.raises(errors.ContractError) as there:
        any_client.apply_rotary_pos_emb_grad(**arguments, check=False)
    assert there.value.aclnn_status == 161002
    if there.value.reason != "REFUSED_BY_DEVICE":  # a device has words of its own
        assert there.value.argument == argument
        assert re.search(words, there.value.message)
    assert there.value.request_id


@pytest.mark.parametrize("axis", range(4))
def test_an_empty_axis_is_refused(any_client: opferry.Client, axis: int) -> None:
    """No dimension may be 0."""
    shape = [3, 4, 2, 8]
    shape[axis] = 0
    with pytest.raises(errors.InvalidTensorError, match="no axis may be 0"):
        any_client.apply_rotary_pos_emb_grad(**_with({"grad_query_embed": tuple(shape)}))
    spec = opferry.TensorSpec(opferry.DType.FLOAT32, tuple(shape))
    with pytest.raises(errors.RequestError, match="grad_"):
        any_client.plan_apply_rotary_pos_emb_grad(**{**_with({}), "grad_query_embed": spec})


def test_mixed_dtypes_are_refused_with_a_hint(any_client: opferry.Client) -> None:
    """Cos in float32 beside bfloat16 gradients is common in models, and refused here."""
    arguments = tnd(dtype=BF16)
    arguments["cos"] = arguments["cos"].astype(F32)
    with pytest.raises(errors.ContractError, match="convert cos") as caught:
        any_client.apply_rotary_pos_emb_grad(**arguments)
    assert caught.value.reason == "DTYPE_NOT_ALLOWED"


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.complex64, object])
def test_other_dtypes_are_refused(any_client: opferry.Client, dtype: Any) -> None:
    """Only float32, float16 and bfloat16 are allowed, and the text says so."""
    arguments = tnd()
    arguments["sin"] = arguments["sin"].astype(dtype)
    with pytest.raises(errors.ContractError, match="float32, float16 or bfloat16") as caught:
        any_client.apply_rotary_pos_emb_grad(**arguments)
    assert caught.value.argument == "sin"


def test_infinity_times_zero_is_nan(any_client: opferry.Client) -> None:
    """Cos = inf: grad_query is inf twice, grad_key NaN and inf."""
    result = any_client.apply_rotary_pos_emb_grad(
        full((1, 1, 2), 1),
        np.array([[[0, 1]]], F32),
        full((1, 1, 2), np.inf),
        full((1, 1, 2), 0),
        layout=4,
    )
    assert result.grad_query.ravel().tolist() == [np.inf, np.inf]
    assert np.isnan(result.grad_key.ravel()[0])
    assert result.grad_key.ravel()[1] == np.inf


def test_float16_overflows_to_infinity(any_client: opferry.Client) -> None:
    """120000 in float16 is infinity, not the largest finite 65504."""
    f16 = np.float16
    result = any_client.apply_rotary_pos_emb_grad(
        full((1, 1, 2), 60000, f16),
        full((1, 1, 2), 1, f16),
        full((1, 1, 2), 2, f16),
        full((1, 1, 2), 0, f16),
        layout=4,
    )
    assert result.grad_query.ravel().tolist() == [np.inf, np.inf]


def test_sums_are_kept_in_float32(any_client: opferry.Client) -> None:
    """8192 ones in bfloat16 sum to 8192; a running sum in bfloat16 would stick at 256."""
    heads, ones = full((1, 4096, 2), 1, BF16), full((1, 1, 2), 1, BF16)
    zeros = full((1, 1, 2), 0, BF16)
    result = any_client.apply_rotary_pos_emb_grad(
        heads, heads, ones, zeros, query=heads, key=heads, layout=4
    )
    assert result.grad_cos is not None
    assert result.grad_sin is not None
    assert result.grad_cos.astype(F32).ravel().tolist() == [8192, 8192]
    assert result.grad_sin.astype(F32).ravel().tolist() == [-8192, 8192]


def test_bfloat16_is_rounded_and_not_cut(any_client: opferry.Client) -> None:
    """0.01 in bfloat16 is 0x3C24; times 2 it is 0x3CA4."""
    hundredth = np.array([0.01], F32).astype(BF16)
    assert bits16(hundredth) == [0x3C24]
    result = any_client.apply_rotary_pos_emb_grad(
        full((1, 1, 2), hundredth[0], BF16),
        full((1, 1, 2), hundredth[0], BF16),
        full((1, 1, 2), 2, BF16),
        full((1, 1, 2), 0, BF16),
        layout=4,
    )
    assert bits16(result.grad_query) == [0x3CA4, 0x3CA4]


def test_every_bfloat16_pattern_survives_the_way(any_client: opferry.Client) -> None:
    """With cos = 1 and sin = 0 finite values, zeros and infinities come back bit for bit."""
    patterns = np.arange(2**16, dtype=np.uint16).view(BF16).reshape(256, 2, 128)
    result = any_client.apply_rotary_pos_emb_grad(
        patterns,
        patterns,
        full((256, 1, 128), 1, BF16),
        full((256, 1, 128), 0, BF16),
        layout=4,
    )
    expected = reference(
        {
            "grad_query_embed": patterns,
            "grad_key_embed": patterns,
            "cos": full((256, 1, 128), 1, BF16),
            "sin": full((256, 1, 128), 0, BF16),
            "layout": 4,
        }
    )
    assert_agrees(result, expected)


@pytest.mark.parametrize("tokens", [255, 256, 257])
def test_the_edge_of_grpcs_message_size(any_client: opferry.Client, tokens: int) -> None:
    """4 MiB of payload, and a little less and more, all succeed with a default client."""
    arguments = tnd(tokens, 15, 15, 128, with_query=False)
    assert tokens != 256 or sum(arguments[n].nbytes for n in list(arguments)[:4]) == 4_194_304
    assert_agrees(any_client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))


def test_a_small_request_may_have_a_large_reply(any_client: opferry.Client) -> None:
    """Stride-0 views: a request of 32 bytes of data whose reply is over the message limit."""
    one = np.ones((1, 1, 2), F32)
    wide = np.broadcast_to(one, (65536, 16, 2))
    narrow = np.broadcast_to(one, (65536, 1, 2))
    result = any_client.apply_rotary_pos_emb_grad(
        wide, wide, narrow, narrow, layout=4, keep_strides=True
    )
    assert result.execution.upload_bytes == 32
    assert result.execution.download_bytes == 2 * 65536 * 16 * 2 * 4
    assert result.grad_query[..., 0].min() == result.grad_query[..., 0].max() == 2
    assert not result.grad_query[..., 1].any()
