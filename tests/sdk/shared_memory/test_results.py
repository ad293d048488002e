"""Tensors through shared memory: the same results, and views that last."""

from __future__ import annotations

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry._lease_connection import HASTY_COUNT
from opferry._leased_arena import LEAST_BYTES, size_class
from opferry.core.tensors import from_array
from opferry.operators.call import Call
from tests.support import servers
from tests.support.calls import ROTARY_GRAD, assert_same_bits, reference, tnd
from tests.support.leasing import arrays_of, large, open_arenas
from tests.support.processes import eventually, thread_count

Result = opferry.ApplyRotaryPosEmbGradResult


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("keep_strides", [False, True])
@pytest.mark.parametrize("view", ["plain", "fortran", "reversed", "sliced", "broadcast"])
def test_the_same_bits_as_over_the_network(
    client: opferry.Client,
    server: servers.EmbeddedServer,
    dtype: Any,
    checksum: bool,
    keep_strides: bool,
    view: str,
) -> None:
    """Any dtype and any view of the inputs; the outputs are read-only and of the right kind."""
    arguments = large(dtype=dtype)
    for name in ("grad_query_embed", "query"):
        plain = arguments[name]
        arguments[name] = {
            "plain": plain,
            "fortran": np.asfortranarray(plain),
            "reversed": np.ascontiguousarray(plain[::-1])[::-1],
            "sliced": np.concatenate([plain, plain], axis=-1)[..., :32],
            "broadcast": np.broadcast_to(plain[:1], plain.shape),
        }[view]
    before = {name: np.array(arguments[name]) for name in ("grad_query_embed", "query")}
    options = {"checksum": checksum, "keep_strides": keep_strides}
    result = client.apply_rotary_pos_emb_grad(**arguments, **options)
    assert result.execution.shared_memory
    assert_same_bits(result, reference(arguments))
    for array in arrays_of(result).values():
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    with opferry.connect(server.address, shared_memory=False) as other:
        chunks = other.apply_rotary_pos_emb_grad(**arguments, **options)
    assert not chunks.execution.shared_memory
    assert_same_bits(chunks, arrays_of(result))
    assert (result.execution.upload_bytes, result.execution.download_bytes) == (
        chunks.execution.upload_bytes,
        chunks.execution.download_bytes,
    )
    for name, array in before.items():
        assert array.tobytes() == arguments[name].tobytes()


def test_big_endian_inputs(client: opferry.Client) -> None:
    """They are converted on their way into the memory."""
    arguments = large()
    swapped = {
        name: value.astype(value.dtype.newbyteorder(">"))
        if isinstance(value, np.ndarray)
        else value
        for name, value in arguments.items()
    }
    result = client.apply_rotary_pos_emb_grad(**swapped)
    assert result.execution.shared_memory
    assert_same_bits(result, reference(arguments))


def test_small_calls_stay_as_they_are(client: opferry.Client, server: Any) -> None:
    """A unary call leases nothing, and its result is the caller's own."""
    result = client.apply_rotary_pos_emb_grad(**tnd(cos=0))
    assert not result.execution.shared_memory
    assert result.grad_query.flags.writeable
    assert open_arenas(server.pid) == 0


def test_results_that_a_message_could_hold_are_the_callers_own() -> None:
    """From 64 KiB on memory is shared, by either client, and calls in turn use one lease."""
    calls = [tnd(300, 4, 2, 32, cos=0.0, seed=seed) for seed in range(4)]
    with servers.embedded("SleepBackend", limits={"unary_bytes": 3 << 20}) as server:
        with opferry.connect(server.address) as client:
            results = [client.apply_rotary_pos_emb_grad(**arguments) for arguments in calls]
            assert open_arenas(server.pid) == 1

        async def scenario() -> list[Result]:
            async with opferry.aio.connect(server.address) as other:
                return [await other.apply_rotary_pos_emb_grad(**arguments) for arguments in calls]

        results += asyncio.run(scenario())
    for result, arguments in zip(results, calls * 2, strict=True):
        assert result.execution.shared_memory
        assert_same_bits(result, reference(arguments))
        for array in arrays_of(result).values():
            assert array.flags.writeable


def test_many_calls_at_a_time_leave_leases_to_others() -> None:
    """Calls that can do without share a few; the rest of them go by message."""
    arguments = tnd(300, 4, 2, 32, cos=0.2)
    with (
        servers.embedded(
            "SleepBackend", limits={"unary_bytes": 3 << 20, "idle_memory_bytes": 0}
        ) as server,
        opferry.connect(server.address) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        calls = [pool.submit(client.apply_rotary_pos_emb_grad, **arguments) for _ in range(16)]
        results = [call.result() for call in calls]
        assert open_arenas(server.pid) <= HASTY_COUNT
    assert any(result.execution.shared_memory for result in results)
    for result in results:
        assert_same_bits(result, reference(arguments))


def test_progress_is_told(client: opferry.Client) -> None:
    """As over the network."""
    seen: list[opferry.Progress] = []
    result = client.apply_rotary_pos_emb_grad(**large(), on_progress=seen.append)
    assert result.execution.shared_memory
    states = opferry.ProgressState
    assert seen[0].state is states.UPLOADING
    assert seen[-1].state is states.RUNNING


def test_memory_is_used_again_when_the_last_view_dies(client: opferry.Client, server: Any) -> None:
    """Results that are thrown away share one lease; one that is kept needs another."""
    for seed in range(5):
        arguments = large(seed)
        result = client.apply_rotary_pos_emb_grad(**arguments)
        assert result.execution.shared_memory
        assert_same_bits(result, reference(arguments))
        assert open_arenas(server.pid) == 1
        del result
    kept = client.apply_rotary_pos_emb_grad(**large(7))
    other = client.apply_rotary_pos_emb_grad(**large(8))
    assert open_arenas(server.pid) == 2
    assert_same_bits(kept, reference(large(7)))
    assert_same_bits(other, reference(large(8)))


VIEWS: dict[str, Any] = {
    "one output": lambda result: result.grad_cos,
    "a slice": lambda result: result.grad_query[3:7, :, ::2],
    "a slice of a transposed view": lambda result: result.grad_query.T[1:][2:],
    "another dtype": lambda result: result.grad_query.view(np.uint32),
    "a memoryview": lambda result: memoryview(result.grad_query).cast("B"),
    "a subclass": lambda result: result.grad_query.reshape(-1, 32).view(np.matrix),
    "numpy's own": lambda result: np.frombuffer(result.grad_query, np.uint8),
}


@pytest.mark.parametrize("view_of", VIEWS.values(), ids=VIEWS.keys())
def test_any_view_keeps_the_memory(client: opferry.Client, server: Any, view_of: Any) -> None:
    """As long as it lives nothing else is written there, whatever it was made with."""
    view = view_of(client.apply_rotary_pos_emb_grad(**large(1)))
    before = bytes(view)
    for seed in range(2, 5):
        client.apply_rotary_pos_emb_grad(**large(seed))
    assert bytes(view) == before
    assert open_arenas(server.pid) == 2
    del view
    client.close()
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_torch_tensor_keeps_the_memory(client: opferry.Client) -> None:
    """torch.from_numpy takes no copy, and holds the array."""
    torch = pytest.importorskip("torch", reason='needs torch, of the extra "dev"')
    expected = reference(large(1))["grad_query"]
    with pytest.warns(UserWarning, match="not writable"):
        tensor = torch.from_numpy(client.apply_rotary_pos_emb_grad(**large(1)).grad_query)
    for seed in range(2, 5):
        client.apply_rotary_pos_emb_grad(**large(seed))
    assert tensor.numpy().tobytes() == expected.tobytes()


def test_views_outlive_the_client_and_the_server() -> None:
    """Closing either, in whatever order, changes nothing that is looked at."""
    arguments = large(1)
    expected = reference(arguments)
    with servers.embedded() as server:
        with opferry.connect(server.address) as client:
            result = client.apply_rotary_pos_emb_grad(**arguments)
            threads = thread_count(os.getpid())
        assert result.execution.shared_memory
        assert_same_bits(result, expected)
        with opferry.connect(server.address) as another:
            second = another.apply_rotary_pos_emb_grad(**arguments)
            assert_same_bits(second, expected)
            server.stop()
            assert_same_bits(second, expected)
        assert_same_bits(second, expected)
        assert_same_bits(result, expected)
        del result, second
        assert eventually(lambda: thread_count(os.getpid()) < threads + 1)


def test_a_client_that_nobody_closes_ends_its_leases(server: servers.EmbeddedServer) -> None:
    """The last of client and views takes the connection with it."""
    client = opferry.connect(server.address)
    result = client.apply_rotary_pos_emb_grad(**large(1))
    assert result.execution.shared_memory
    del client
    gc.collect()
    assert_same_bits(result, reference(large(1)))
    assert open_arenas(server.pid) >= 1
    del result
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_copy_is_the_callers_own(client: opferry.Client, server: Any) -> None:
    """With copy=True results are writable, in memory of their own, and one lease does for all."""
    results = [client.apply_rotary_pos_emb_grad(**large(seed), copy=True) for seed in range(3)]
    assert open_arenas(server.pid) == 1
    for seed, result in enumerate(results):
        assert result.execution.shared_memory
        assert_same_bits(result, reference(large(seed)))
        for array in arrays_of(result).values():
            assert array.flags.writeable
            assert array.flags.c_contiguous
            array[...] = 0


def test_execute_does_alike(client: opferry.Client) -> None:
    """Calls of any operator: views, and copies if asked for."""
    arguments = large()
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    tensors = {name: from_array(name, array) for name, array in arrays.items()}
    call = Call(
        ROTARY_GRAD,
        ROTARY_GRAD.parse_attributes({"layout": 4}),
        {name: tensor.spec for name, tensor in tensors.items()},
    )
    for copy in (False, True):
        found = client.execute(call, tensors, copy=copy)
        assert found.execution.shared_memory
        for name, array in reference(arguments).items():
            assert found.outputs[name].tobytes() == array.tobytes()
            assert found.outputs[name].flags.writeable == copy


@pytest.mark.full
def test_many_threads_share_a_client(client: opferry.Client, server: Any) -> None:
    """Each call has memory of its own."""

    def call(seed: int) -> Result:
        return client.apply_rotary_pos_emb_grad(**large(seed))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(24)))
    for seed, result in enumerate(results):
        assert_same_bits(result, reference(large(seed)))
    assert any(result.execution.shared_memory for result in results)
    del result, results
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_the_asynchronous_client_does_alike(server: servers.EmbeddedServer) -> None:
    """Views, copies, many at once; they outlive the client too."""

    async def scenario() -> list[Result]:
        async with opferry.aio.connect(server.address) as client:
            one = await client.apply_rotary_pos_emb_grad(**large(0))
            own = await client.apply_rotary_pos_emb_grad(**large(1), copy=True)
            assert own.grad_query.flags.writeable
            calls = [client.apply_rotary_pos_emb_grad(**large(seed)) for seed in range(2, 8)]
            return [one, own, *await asyncio.gather(*calls)]

    results = asyncio.run(scenario())
    for seed, result in enumerate(results):
        assert result.execution.shared_memory
        assert_same_bits(result, reference(large(seed)))
        assert result.grad_query.flags.writeable == (seed == 1)
    del result, results
    assert eventually(lambda: open_arenas(server.pid) == 0)


@pytest.mark.parametrize("size", [1, LEAST_BYTES, LEAST_BYTES + 1, 2**28 + 4096, 2**32 - 1])
def test_sizes_of_leases_come_in_classes(size: int) -> None:
    """At least what is needed, at most an eighth more, and few different ones."""
    found = size_class(size)
    assert max(size, LEAST_BYTES) <= found <= max(size, LEAST_BYTES) * 9 / 8
    assert size_class(found) == found
