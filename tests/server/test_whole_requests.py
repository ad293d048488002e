"""Calls of up to a few megabytes, which one message carries each way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Reason
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd

LIMIT_BYTES = LimitsConfig().unary_bytes
TOKENS = [1, 42, 43, 350, 1024, 1025]
"""Of 3 KiB of inputs each: on both sides of what is parted by hand, of what lies in kept memory,
and of what one message carries."""


def call_of(tokens: int) -> dict[str, Any]:
    return tnd(tokens, query_heads=2, key_heads=2, width=128, with_query=False)


@pytest.fixture(scope="module")
def server() -> Iterator[servers.EmbeddedServer]:
    with servers.embedded(limits={"unary_bytes": LIMIT_BYTES}) as running:
        yield running


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("tokens", TOKENS)
def test_the_same_bits_on_both_sides_of_each_size(
    server: servers.EmbeddedServer, tokens: int, checksum: bool
) -> None:
    """Whether whole or in chunks, with digests or without, through either client."""
    arguments = call_of(tokens)
    expected = reference(arguments)

    async def asynchronously() -> opferry.ApplyRotaryPosEmbGradResult:
        async with opferry.aio.connect(server.address, shared_memory=False) as client:
            return await client.apply_rotary_pos_emb_grad(**arguments, checksum=checksum)

    with opferry.connect(server.address, shared_memory=False) as client:
        found = client.apply_rotary_pos_emb_grad(**arguments, checksum=checksum)
    for result in (found, asyncio.run(asynchronously())):
        assert_same_bits(result, expected)
        assert result.dq.flags.writeable


def test_the_default_carries_three_megabytes(server: servers.EmbeddedServer) -> None:
    """A call just within the limit is one message, and one just over it is a stream."""
    with opferry.connect(server.address, shared_memory=False) as client:
        for tokens, told in ((1024, False), (1025, True)):
            states: list[opferry.Progress] = []
            arguments = call_of(tokens)
            client.apply_rotary_pos_emb_grad(**arguments, on_progress=states.append)
            assert bool(states) == told


@pytest.mark.parametrize("size", [10, 2**20])
def test_bytes_that_are_no_request_say_so(server: servers.EmbeddedServer, size: int) -> None:
    """Whether they are read by hand or by the generated code."""
    with pytest.raises(errors.RequestError, match=r"the request is no opferry\.v1\.") as caught:
        raw.unary(server.address, "ApplyRotaryPosEmbGrad", b"\xff" * size)
    assert caught.value.reason == Reason.STREAM_PROTOCOL.value
    assert caught.value.request_id


def test_results_of_many_tasks_stay_apart(server: servers.EmbeddedServer) -> None:
    """Each has its own data, although their memory is used again and again."""

    async def run() -> None:
        async with opferry.aio.connect(server.address, shared_memory=False) as client:

            async def one(value: int) -> None:
                arguments = call_of(1024)
                arguments["cos"] = np.ones_like(arguments["cos"])
                arguments["sin"] = np.zeros_like(arguments["sin"])
                arguments["grad_query_embed"] = np.full_like(arguments["grad_query_embed"], value)
                for _ in range(5):
                    result = await client.apply_rotary_pos_emb_grad(**arguments)
                    await asyncio.sleep(0)
                    assert (result.dq == value).all()

            await asyncio.gather(*(one(value) for value in range(8)))

    asyncio.run(run())
