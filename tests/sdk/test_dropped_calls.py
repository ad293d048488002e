"""Calls that a server drops as it ends, with no word of its own, are made again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import opferry
from opferry import errors
from opferry.results import ApplyRotaryPosEmbGradResult
from opferry.validation import CaseStatus
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.dropping_gateway import dropping_gateway

OPERATOR, TND = "ApplyRotaryPosEmbGrad", {"layout": 4}
SMALL, LARGE = tnd(3), tnd(20000)
METHODS = {"GetServerInfo", OPERATOR, "Execute", "ExecuteMany", "Plan", "Validate"}


@pytest.fixture
def gateway(cpu_server: str) -> Iterator[tuple[str, list[str]]]:
    """The gateway's address, and the methods that it has dropped a call of."""
    with dropping_gateway(cpu_server) as both:
        yield both


def test_a_dropped_call_is_made_again(gateway: tuple[str, list[str]]) -> None:
    """Unary or stream, one or many: the caller notices nothing."""
    address, dropped = gateway
    inputs = {name: value for name, value in SMALL.items() if name != "layout"}
    with opferry.connect(address, shared_memory=False) as client:
        for arguments in (SMALL, LARGE):
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert client.plan_apply_rotary_pos_emb_grad(**SMALL).outputs
        (outcome,) = client.execute_many(OPERATOR, [inputs], attributes=TND)
        assert_same_bits(ApplyRotaryPosEmbGradResult.of(outcome.value), reference(SMALL))
        assert client.validate(OPERATOR, inputs, attributes=TND).status is CaseStatus.PASS
    assert set(dropped) == METHODS


def test_the_asynchronous_client_makes_them_again(gateway: tuple[str, list[str]]) -> None:
    """As the synchronous one."""
    address, dropped = gateway

    async def scenario() -> None:
        async with opferry.aio.connect(address, shared_memory=False) as client:
            for arguments in (SMALL, LARGE):
                result = await client.apply_rotary_pos_emb_grad(**arguments)
                assert_same_bits(result, reference(arguments))

    asyncio.run(scenario())
    assert set(dropped) == {"GetServerInfo", OPERATOR, "Execute"}


def test_whoever_wants_no_second_try_is_told_that_the_call_was_lost(
    gateway: tuple[str, list[str]],
) -> None:
    """It is an error of the transport: nobody has cancelled anything."""
    address, _ = gateway
    with opferry.connect(address, retry=opferry.RetryConfig(attempts=1)) as client:
        with pytest.raises(errors.TransportError, match="CANCELLED") as lost:
            client.server_info()
        assert lost.value.may_retry
        client.server_info()
