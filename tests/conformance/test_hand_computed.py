"""Calls whose results were worked out by hand, through a real server."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from tests.support.calls import GRAD, Subject, assert_agrees, reference, tnd

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
def test_the_edges_of_the_width_are_served(
    any_client: opferry.Client, subject: Subject, width: int
) -> None:
    """D = 2 and D = 1024 are inside the contract."""
    arguments = subject.tnd(width=width)
    result = subject.call(any_client, **arguments)
    assert_agrees(result, reference(arguments))


def test_infinity_times_zero_is_nan(any_client: opferry.Client, subject: Subject) -> None:
    """Cos = inf: the first output is inf twice, the second NaN and inf."""
    first, second, *_ = subject.call(
        any_client,
        full((1, 1, 2), 1),
        np.array([[[0, 1]]], F32),
        full((1, 1, 2), np.inf),
        full((1, 1, 2), 0),
        layout=4,
    )
    assert first.ravel().tolist() == [np.inf, np.inf]
    assert np.isnan(second.ravel()[0])
    assert second.ravel()[1] == np.inf


def test_float16_overflows_to_infinity(any_client: opferry.Client, subject: Subject) -> None:
    """120000 in float16 is infinity, not the largest finite 65504."""
    f16 = np.float16
    first, *_ = subject.call(
        any_client,
        full((1, 1, 2), 60000, f16),
        full((1, 1, 2), 1, f16),
        full((1, 1, 2), 2, f16),
        full((1, 1, 2), 0, f16),
        layout=4,
    )
    assert first.ravel().tolist() == [np.inf, np.inf]


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


def test_bfloat16_is_rounded_and_not_cut(any_client: opferry.Client, subject: Subject) -> None:
    """0.01 in bfloat16 is 0x3C24; times 2 it is 0x3CA4."""
    hundredth = np.array([0.01], F32).astype(BF16)
    assert bits16(hundredth) == [0x3C24]
    first, *_ = subject.call(
        any_client,
        full((1, 1, 2), hundredth[0], BF16),
        full((1, 1, 2), hundredth[0], BF16),
        full((1, 1, 2), 2, BF16),
        full((1, 1, 2), 0, BF16),
        layout=4,
    )
    assert bits16(first) == [0x3CA4, 0x3CA4]


def test_every_bfloat16_pattern_survives_the_way(
    any_client: opferry.Client, subject: Subject
) -> None:
    """With cos = 1 and sin = 0 finite values, zeros and infinities come back bit for bit."""
    patterns = np.arange(2**16, dtype=np.uint16).view(BF16).reshape(256, 2, 128)
    arguments = {
        **dict.fromkeys(subject.vectors, patterns),
        "cos": full((256, 1, 128), 1, BF16),
        "sin": full((256, 1, 128), 0, BF16),
        "layout": 4,
    }
    assert_agrees(subject.call(any_client, **arguments), reference(arguments))


@pytest.mark.parametrize("tokens", [255, 256, 257])
def test_the_edge_of_grpcs_message_size(
    any_client: opferry.Client, subject: Subject, tokens: int
) -> None:
    """4 MiB of payload, and a little less and more, all succeed with a default client."""
    arguments = subject.tnd(tokens, 15, 15, 128, with_query=False)
    assert tokens != 256 or sum(arguments[n].nbytes for n in list(arguments)[:4]) == 4_194_304
    assert_agrees(subject.call(any_client, **arguments), reference(arguments))


def test_a_small_request_may_have_a_large_reply(
    any_client: opferry.Client, subject: Subject
) -> None:
    """Stride-0 views: a request of 32 bytes of data whose reply is over the message limit."""
    one = np.ones((1, 1, 2), F32)
    wide = np.broadcast_to(one, (65536, 16, 2))
    narrow = np.broadcast_to(one, (65536, 1, 2))
    result = subject.call(any_client, wide, wide, narrow, narrow, layout=4, keep_strides=True)
    assert result.execution.upload_bytes == 32
    assert result.execution.download_bytes == 2 * 65536 * 16 * 2 * 4
    # 1 + 1 and 1 - 1; the backward turns the other way round
    sums = 0 if subject is GRAD else 1
    first, *_ = result
    assert first[..., sums].min() == first[..., sums].max() == 2
    assert not first[..., 1 - sums].any()


HALF = [1 - 50, 2 - 60, 3 - 70, 4 - 80, 5 + 10, 6 + 20, 7 + 30, 8 + 40]
INTERLEAVE = [1 - 20, 2 + 10, 3 - 40, 4 + 30, 5 - 60, 6 + 50, 7 - 80, 8 + 70]
QUARTER = [1 - 30, 2 - 40, 3 + 10, 4 + 20, 5 - 70, 6 - 80, 7 + 50, 8 + 60]


@pytest.mark.parametrize(
    ("mode", "expected"), [("half", HALF), ("interleave", INTERLEAVE), ("quarter", QUARTER)]
)
def test_each_mode_pairs_its_own_elements(
    any_client: opferry.Client, mode: str, expected: list[int]
) -> None:
    """1 to 8 with cos 1 and sin 10."""
    vector = np.array([[[1, 2, 3, 4, 5, 6, 7, 8]]], F32)
    cos, sin = full((1, 1, 8), 1), full((1, 1, 8), 10)
    result = any_client.apply_rotary_pos_emb(
        vector, vector, cos, sin, layout="TND", rotary_mode=mode
    )
    assert result.query_out.ravel().tolist() == result.key_out.ravel().tolist() == expected


def test_what_cos_does_not_reach_is_passed_through(any_client: opferry.Client) -> None:
    """Of six elements the first two are turned; the tail keeps its bits, a NaN among them."""
    vector = np.array([[[1, 2, np.nan, -0.0, np.inf, 6]]], F32)
    cos, sin = full((1, 1, 2), 1), full((1, 1, 2), 10)
    result = any_client.apply_rotary_pos_emb(vector, vector, cos, sin, layout="TND")
    assert result.query_out.ravel()[:2].tolist() == [1 - 20, 2 + 10]
    assert result.query_out[..., 2:].tobytes() == vector[..., 2:].tobytes()
