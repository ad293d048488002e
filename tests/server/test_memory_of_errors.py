"""What a call that fails leaves behind: nothing of its data, whether or not anybody collects it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from opferry.core.problems import Problem, Reason
from opferry_server.requests import ErrorTexts, Requests


class Data:
    """What stands for the data of a request; unlike bytes, it can be referred to weakly."""


def _problem() -> None:
    raise Problem(Reason.OPERATOR_FAILED, "on purpose")


def _problem_of_another() -> None:
    try:
        raise OSError("below")
    except OSError as error:
        raise Problem(Reason.OPERATOR_FAILED, "above") from error


def _defect() -> None:
    raise ZeroDivisionError


ENDS: list[Callable[[], None]] = [_problem, _problem_of_another, _defect]


@pytest.mark.parametrize("end", ENDS)
def test_no_circle_keeps_the_data_of_a_call(end: Callable[[], None]) -> None:
    """On a real server of gRPC, which keeps the error with which a call is ended in the call."""
    seen: list[weakref.ref[Data]] = []

    async def behavior(_: Any, context: Any) -> bytes:
        frame = await context.read()
        data = Data()
        seen.append(weakref.ref(data))
        end()
        return bytes(frame)

    asyncio.run(_call_once(Requests(ErrorTexts(), "test").wrap("Echo", behavior)))
    assert len(seen) == 1
    assert seen[0]() is None


async def _call_once(handler: Callable[..., Awaitable[Any]]) -> None:
    server = grpc.aio.server()
    method = grpc.stream_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Test", {"Echo": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.collect()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/test.Test/Echo")(b"data")
        await server.stop(None)
    finally:
        gc.enable()
