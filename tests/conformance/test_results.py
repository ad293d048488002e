"""Results through a real server equal the reference, for every kind of call."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opferry
from tests.support.calls import assert_agrees, reference, tnd

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@st.composite
def rotary_calls(draw: st.DrawFn) -> dict[str, Any]:
    """Any valid call of up to some thousand elements, with any values, views included."""
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(["BSND", "SBND", "TND"]))
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    query_heads, key_heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    width = 2 * draw(st.integers(1, 9))
    cos_batch = draw(st.sampled_from([1, batch]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    odd = draw(st.booleans())

    def array(rows: int, heads: int) -> np.ndarray:
        shape = {
            "BSND": (rows, length, heads, width),
            "SBND": (length, rows, heads, width),
            "TND": (length, heads, width),
        }[layout]
        values = rng.standard_normal(shape, np.float32) * 4
        if odd:
            special = [np.inf, -np.inf, np.nan, 3e38, 0.0, -0.0]
            hit = rng.random(shape) < 0.1
            values[hit] = rng.choice(special, int(hit.sum()))
        with np.errstate(over="ignore"):
            made = values.astype(dtype)
        view = draw(st.sampled_from(["plain", "fortran", "reversed", "sliced", "read-only"]))
        if view == "fortran":
            return np.asfortranarray(made)
        if view == "reversed":
            return np.ascontiguousarray(made[::-1])[::-1]
        if view == "sliced":
            return np.concatenate([made, made], axis=-1)[..., :width]
        if view == "read-only":
            made.flags.writeable = False
        return made

    arguments: dict[str, Any] = {
        "grad_query_embed": array(batch, query_heads),
        "grad_key_embed": array(batch, key_heads),
        "cos": array(cos_batch, 1),
        "sin": array(cos_batch, 1),
        "layout": layout,
    }
    if draw(st.booleans()):
        arguments |= {"query": array(batch, query_heads), "key": array(batch, key_heads)}
    return arguments


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(arguments=rotary_calls(), keep_strides=st.booleans(), checksum=st.booleans())
def test_any_call_gives_the_references_bits(
    any_client: opferry.Client, arguments: dict[str, Any], keep_strides: bool, checksum: bool
) -> None:
    """Any layout, dtype, broadcast, head counts, values and views give the reference's bits."""
    before = {n: a.copy() for n, a in arguments.items() if isinstance(a, np.ndarray)}
    result = any_client.apply_rotary_pos_emb_grad(
        **arguments, keep_strides=keep_strides, checksum=checksum
    )
    assert_agrees(result, reference({**arguments, "layout": opferry.Layout[arguments["layout"]]}))
    for name, array in before.items():
        assert array.tobytes() == arguments[name].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_big_endian_arrays_are_converted(any_client: opferry.Client, dtype: Any) -> None:
    """A big-endian array gives what its little-endian twin gives."""
    rng = np.random.default_rng(0)
    shape, one = (3, 2, 8), (3, 1, 8)
    native = {
        name: rng.standard_normal(one if name in ("cos", "sin") else shape).astype(dtype)
        for name in ("grad_query_embed", "grad_key_embed", "cos", "sin")
    }
    swapped = {name: a.astype(a.dtype.newbyteorder(">")) for name, a in native.items()}
    result = any_client.apply_rotary_pos_emb_grad(**swapped, layout=4)
    assert result.grad_query.dtype == np.dtype(dtype)
    assert_agrees(result, reference({**native, "layout": 4}))


def test_a_stream_and_a_unary_call_agree(any_client: opferry.Client) -> None:
    """The same call, on either side of the size where the client changes over."""
    rng = np.random.default_rng(0)
    most = any_client.server_info().limits.unary_bytes // (9 * 64 * 4)
    for tokens in (most, most + 1):
        arguments = {
            "grad_query_embed": rng.standard_normal((tokens, 4, 64), np.float32),
            "grad_key_embed": rng.standard_normal((tokens, 3, 64), np.float32),
            "cos": rng.standard_normal((tokens, 1, 64), np.float32),
            "sin": rng.standard_normal((tokens, 1, 64), np.float32),
            "layout": 4,
        }
        result = any_client.apply_rotary_pos_emb_grad(**arguments, repeat=3)
        assert_agrees(result, reference(arguments))
        assert len(result.execution.timings.kernel_ns) == 3
        assert (result.execution.timings.upload_ns > 0) == (tokens > most)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shared_memory_and_the_network_agree(any_server: str, dtype: Any) -> None:
    """The same call either way, views sent as views: the same bits, and right."""
    with opferry.connect(any_server, timeout=60) as client:
        unary_bytes = client.server_info().limits.unary_bytes
    tokens = unary_bytes // (7 * 32 * np.dtype(dtype).itemsize) + 1
    arguments = tnd(tokens, 3, 2, 32, dtype=dtype)
    arguments["query"] = np.concatenate([arguments["query"]] * 2, axis=-1)[..., :32]
    with (
        opferry.connect(any_server, timeout=60) as client,
        opferry.connect(any_server, timeout=60, shared_memory=False) as other,
    ):
        shared = client.apply_rotary_pos_emb_grad(**arguments, keep_strides=True, checksum=True)
        sent = other.apply_rotary_pos_emb_grad(**arguments, keep_strides=True, checksum=True)
        assert shared.execution.shared_memory == bool(client.server_info().lease_socket)
    assert not sent.execution.shared_memory
    assert_agrees(shared, reference(arguments))
    for ours, theirs in zip(shared, sent, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.tobytes() == theirs.tobytes()


def test_a_result_is_the_callers_own(client: opferry.Client) -> None:
    """Result arrays are writable, contiguous and share no memory with the inputs."""
    gradient = np.ones((2, 2, 8), np.float32)
    cos = np.ones((2, 1, 8), np.float32)
    result = client.apply_rotary_pos_emb_grad(gradient, gradient, cos, cos, layout=4)
    for array in (result.grad_query, result.grad_key):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, gradient)


def test_the_report_of_an_execution(any_client: opferry.Client) -> None:
    """`.execution` says where, by what and how fast, and that it was no real device."""
    gradient = np.ones((2, 2, 8), np.float32)
    cos = np.ones((2, 1, 8), np.float32)
    execution = any_client.apply_rotary_pos_emb_grad(
        gradient, gradient, cos, cos, layout=4
    ).execution
    assert execution.request_id.startswith("r-")
    assert execution.worker == "worker-0"
    assert execution.device in ("cpu:0", "npu:0")
    assert execution.backend in ("cpu", "aclnn", "torch-npu")
    assert execution.operator_package.known_answer == "PASSED"
    assert not execution.real_device
    assert execution.operator_package.name == "built-in"
    assert execution.timings.kernel_ns[0] > 0
    # the wrapper does not tell its stages apart
    assert (execution.timings.stage_one_ns > 0) == (execution.backend != "torch-npu")
    assert execution.upload_bytes == 2 * gradient.nbytes + 2 * cos.nbytes
    assert execution.download_bytes == 2 * gradient.nbytes
