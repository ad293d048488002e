"""Results through a real server equal the reference, for every kind of call."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opferry
from tests.support.calls import FORWARD, GRAD, Subject, assert_agrees, reference

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]

LAYOUTS = {GRAD.name: ["BSND", "SBND", "TND"], FORWARD.name: ["BSND", "SBND", "BNSD", "TND"]}
MODES = {GRAD.name: ["half"], FORWARD.name: ["half", "interleave", "quarter"]}


@st.composite
def rotary_calls(draw: st.DrawFn, subject: Subject) -> dict[str, Any]:
    """Any valid call of up to some thousand elements, with any values, views included."""
    dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(LAYOUTS[subject.name]))
    mode = draw(st.sampled_from(MODES[subject.name]))
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    query_heads, key_heads = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    pairs = draw(st.integers(1, 9))
    multiple = 4 if mode == "quarter" else 2
    width = multiple * pairs
    # only the forward may rotate less than all of D
    rotated = multiple * draw(st.integers(1, pairs)) if subject is FORWARD else width
    cos_batch = draw(st.sampled_from([1, batch]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    odd = draw(st.booleans())

    def array(rows: int, heads: int, last: int = width) -> np.ndarray:
        sizes = {"B": rows, "S": length, "T": length, "N": heads, "D": last}
        shape = tuple(sizes[axis] for axis in layout)
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
            return np.concatenate([made, made], axis=-1)[..., :last]
        if view == "read-only":
            made.flags.writeable = False
        return made

    query, key = subject.vectors
    arguments: dict[str, Any] = {
        query: array(batch, query_heads),
        key: array(batch, key_heads),
        "cos": array(cos_batch, 1, rotated),
        "sin": array(cos_batch, 1, rotated),
        "layout": layout,
        "rotary_mode": mode,
    }
    if subject is GRAD and draw(st.booleans()):
        arguments |= {"query": array(batch, query_heads), "key": array(batch, key_heads)}
    return arguments


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), keep_strides=st.booleans(), checksum=st.booleans())
def test_any_call_gives_the_references_bits(
    any_client: opferry.Client,
    subject: Subject,
    data: st.DataObject,
    keep_strides: bool,
    checksum: bool,
) -> None:
    """Any layout, dtype, broadcast, head counts, values and views give the reference's bits."""
    arguments = data.draw(rotary_calls(subject))
    before = {n: a.copy() for n, a in arguments.items() if isinstance(a, np.ndarray)}
    result = subject.call(any_client, **arguments, keep_strides=keep_strides, checksum=checksum)
    assert_agrees(result, reference({**arguments, "layout": opferry.Layout[arguments["layout"]]}))
    for name, array in before.items():
        assert array.tobytes() == arguments[name].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_big_endian_arrays_are_converted(
    any_client: opferry.Client, subject: Subject, dtype: Any
) -> None:
    """A big-endian array gives what its little-endian twin gives."""
    native = subject.tnd(dtype=dtype)
    swapped = {
        name: value.astype(value.dtype.newbyteorder(">"))
        if isinstance(value, np.ndarray)
        else value
        for name, value in native.items()
    }
    result = subject.call(any_client, **swapped)
    assert getattr(result, subject.outputs[0]).dtype == np.dtype(dtype)
    assert_agrees(result, reference(native))


def test_a_stream_and_a_unary_call_agree(any_server: str, subject: Subject) -> None:
    """The same call, on either side of the size where the client changes over."""
    with opferry.connect(any_server, timeout=60, shared_memory=False) as client:
        most = client.server_info().limits.unary_bytes // (9 * 64 * 4)
        for tokens in (most, most + 1):
            arguments = subject.tnd(tokens, 4, 3, 64, with_query=False)
            result = subject.call(client, **arguments, repeat=3)
            assert_agrees(result, reference(arguments))
            assert len(result.execution.timings.kernel_ns) == 3
            assert (result.execution.timings.upload_ns > 0) == (tokens > most)


@pytest.mark.parametrize("dtype", DTYPES)
def test_shared_memory_and_the_network_agree(any_server: str, subject: Subject, dtype: Any) -> None:
    """The same call either way, views sent as views: the same bits, and right."""
    with opferry.connect(any_server, timeout=60) as client:
        unary_bytes = client.server_info().limits.unary_bytes
    tokens = unary_bytes // (7 * 32 * np.dtype(dtype).itemsize) + 1
    arguments = subject.tnd(tokens, 3, 2, 32, dtype=dtype)
    arguments["query"] = np.concatenate([arguments["query"]] * 2, axis=-1)[..., :32]
    with (
        opferry.connect(any_server, timeout=60) as client,
        opferry.connect(any_server, timeout=60, shared_memory=False) as other,
    ):
        shared = subject.call(client, **arguments, keep_strides=True, checksum=True)
        sent = subject.call(other, **arguments, keep_strides=True, checksum=True)
        assert shared.execution.shared_memory == bool(client.server_info().lease_socket)
    assert not sent.execution.shared_memory
    assert_agrees(shared, reference(arguments))
    for ours, theirs in zip(shared, sent, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.tobytes() == theirs.tobytes()


def test_a_result_is_the_callers_own(client: opferry.Client, subject: Subject) -> None:
    """Result arrays are writable, contiguous and share no memory with the inputs."""
    vectors = np.ones((2, 2, 8), np.float32)
    cos = np.ones((2, 1, 8), np.float32)
    result = subject.call(client, vectors, vectors, cos, cos, layout=4)
    for array in list(result)[:2]:
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, vectors)


def test_the_report_of_an_execution(any_client: opferry.Client, subject: Subject) -> None:
    """`.execution` says where, by what and how fast, and that it was no real device."""
    vectors = np.ones((2, 2, 8), np.float32)
    cos = np.ones((2, 1, 8), np.float32)
    execution = subject.call(any_client, vectors, vectors, cos, cos, layout=4).execution
    assert re.fullmatch(r".+-[0-9a-f]{16}", execution.request_id)
    assert execution.worker == "worker-0"
    assert execution.device in ("cpu:0", "npu:0")
    assert execution.backend in ("cpu", "aclnn", "torch-npu")
    assert execution.operator_package.known_answer == "PASSED"
    assert not execution.real_device
    assert execution.operator_package.name == "built-in"
    assert execution.timings.kernel_ns[0] > 0
    # the wrapper does not tell its stages apart
    assert (execution.timings.stage_one_ns > 0) == (execution.backend != "torch-npu")
    assert execution.upload_bytes == 2 * vectors.nbytes + 2 * cos.nbytes
    assert execution.download_bytes == 2 * vectors.nbytes
