"""Requests of gigabytes: they succeed, and the memory stays where it belongs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

import opferry
from tests.support import servers
from tests.support.processes import (
    MIB,
    Peaks,
    arena_count,
    eventually,
    family,
    family_pss_bytes,
    pss_bytes,
    rss_anon_bytes,
    sampling,
)

pytestmark = pytest.mark.full

GIB = 1024 * MIB


def gigabyte_call() -> dict[str, Any]:
    """1 GiB in (and some cos and sin), 1 GiB out."""
    gradient = np.ones((2048, 512, 128), np.float32)
    cos = np.ones((2048, 1, 128), np.float32)
    return {
        "grad_query_embed": gradient,
        "grad_key_embed": gradient,
        "cos": cos,
        "sin": cos,
        "layout": 4,
    }


def assert_right(result: opferry.ApplyRotaryPosEmbGradResult) -> None:
    """Cos = sin = gradient = 1: the halves are 2 and 0."""
    for array in (result.grad_query, result.grad_key):
        assert (array[..., :64] == 2).all()
        assert not array[..., 64:].any()


@contextmanager
def sampling_memory(server_pid: int, **others: Callable[[], int]) -> Iterator[Peaks]:
    """Sample the front's anonymous memory often, and what all of the server takes less often."""
    pids = family(server_pid)
    with (
        sampling(front_anon=lambda: rss_anon_bytes(server_pid), **others) as often,
        sampling(0.2, server_pss=lambda: family_pss_bytes(pids)) as seldom,
    ):
        yield often
    often.values.update(seldom.values)


def test_a_gigabyte_each_way() -> None:
    """The front keeps its own memory, and the data is in memory once on each side."""
    arguments = gigabyte_call()
    client_arrays = sum(a.nbytes for a in arguments.values() if isinstance(a, np.ndarray))
    moved = client_arrays + 2 * arguments["grad_query_embed"].nbytes
    with servers.embedded() as server, opferry.connect(server.address) as client:
        client.server_info()
        pids = family(server.pid)
        with sampling_memory(server.pid, client_pss=lambda: pss_bytes(os.getpid())) as peaks:
            assert_right(client.apply_rotary_pos_emb_grad(**arguments))
        print({name: round(value / MIB) for name, value in peaks.values.items()}, moved // MIB)
        assert peaks.values["front_anon"] < 200 * MIB
        assert peaks.values["server_pss"] < 1.3 * moved
        # both gradients are one array here: the client holds half of what it sends
        assert peaks.values["client_pss"] < 1.3 * moved
        # what was used stays warm for half a minute, and not longer
        assert eventually(lambda: family_pss_bytes(pids) < 300 * MIB, 45)


@pytest.mark.timeout(1800)
def test_ten_gigabyte_calls_with_room_for_two() -> None:
    """They are served as room comes free, none fails, and the memory is that of two."""
    arguments = gigabyte_call()
    one = 2 * arguments["grad_query_embed"].nbytes * 2 + 2 * arguments["cos"].nbytes
    limits = {"memory_bytes": 2 * one + 2 * MIB, "idle_memory_bytes": 0}
    with (
        servers.embedded(limits=limits) as server,
        opferry.connect(server.address, timeout=1500) as client,
        ThreadPoolExecutor(10) as pool,
    ):
        client.server_info()
        pids = family(server.pid)
        with sampling_memory(server.pid) as peaks:

            def call(_: int) -> None:
                assert_right(client.apply_rotary_pos_emb_grad(**arguments))

            list(pool.map(call, range(10)))
        print({name: round(value / MIB) for name, value in peaks.values.items()}, one // MIB)
        assert peaks.values["front_anon"] < 200 * MIB
        assert peaks.values["server_pss"] < 1.3 * 2 * one
        assert eventually(lambda: family_pss_bytes(pids) < 300 * MIB)
        assert arena_count(server.pid) == 0


@pytest.mark.parametrize(
    ("query_heads", "key_heads", "request_bytes"),
    [(64, 64, 2_181_038_080), (130, 1, 2_231_369_728)],
)
def test_a_request_over_two_gibibytes(query_heads: int, key_heads: int, request_bytes: int) -> None:
    """Over 2**31 bytes in all, or in one tensor: sizes are 64 bits everywhere."""
    need = 12 * GIB
    available = psutil.virtual_memory().available
    if available < need:
        pytest.skip(f"needs 12 GiB of free memory, has {available / GIB:.1f}")
    f16 = np.float16
    arguments = {
        "grad_query_embed": np.ones((65536, query_heads, 128), f16),
        "grad_key_embed": np.ones((65536, key_heads, 128), f16),
        "cos": np.ones((65536, 1, 128), f16),
        "sin": np.ones((65536, 1, 128), f16),
    }
    assert sum(array.nbytes for array in arguments.values()) == request_bytes
    with servers.embedded() as server, opferry.connect(server.address, timeout=900) as client:
        assert_right(client.apply_rotary_pos_emb_grad(**arguments, layout=4))
