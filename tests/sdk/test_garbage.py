"""Servers that answer garbage: an error of ours, never wrong data, never a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

import opferry
from opferry import errors, wire
from opferry.core.execution import Execution, ServerInfo
from opferry.core.limits import LimitsConfig
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from tests.support import raw
from tests.support.calls import tnd

Frames = Callable[[], list[bytes]]

INFO = ServerInfo("0", "cpu", False, True, (), (), (), LimitsConfig(), {}, "")
SMALL, LARGE = tnd(2, 1, 1, 8, with_query=False), tnd(20000, 1, 1, 8, with_query=False)
SHAPE = [20000, 1, 8]
SIZE = 20000 * 8 * 4


@contextmanager
def garbage(frames: Frames, unary: Any = None, plan: Any = None) -> Iterator[str]:
    """Serve an Execute stream, unary responses and plans that are made up."""

    def execute(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        next(requests)
        yield from frames()

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {
        "Execute": grpc.stream_stream_rpc_method_handler(execute),
        "GetServerInfo": grpc.unary_unary_rpc_method_handler(
            lambda *_: wire.server_info_message(INFO).SerializeToString()
        ),
        "ApplyRotaryPosEmbGrad": grpc.unary_unary_rpc_method_handler(
            lambda *_: unary.SerializeToString()
        ),
        "Plan": grpc.unary_unary_rpc_method_handler(lambda *_: plan.SerializeToString()),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(wire.SERVICE_NAME, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def spec(name: str, shape: list[int] = SHAPE, **fields: Any) -> tensor_pb2.TensorSpec:
    return raw.spec(name, shape, **fields)


def result(*specs: tensor_pb2.TensorSpec) -> bytes:
    execution = wire.execution_message(Execution())
    message = pb.ExecuteResult(outputs=specs, execution=execution)
    return pb.ExecuteResponse(result=message).SerializeToString()


def chunk(index: int, offset: int, size: int) -> bytes:
    message = tensor_pb2.TensorChunk(tensor_index=index, offset_bytes=offset, data=bytes(size))
    return pb.ExecuteResponse(chunk=message).SerializeToString()


DQ, DK = spec("grad_query"), spec("grad_key")
BODY = [chunk(0, 0, SIZE), chunk(1, 0, SIZE)]

STREAMS: dict[str, list[bytes]] = {
    "nothing": [],
    "no protobuf": [b"\xff\xff"],
    "a result and no data": [result(DQ, DK)],
    "one byte short": [result(DQ, DK), chunk(0, 0, SIZE), chunk(1, 0, SIZE - 1)],
    "one byte long": [result(DQ, DK), chunk(0, 0, SIZE + 1), chunk(1, 0, SIZE)],
    "overlap": [result(DQ, DK), *BODY, chunk(1, 0, 8)],
    "gap": [result(DQ, DK), chunk(0, 8, SIZE - 8), chunk(1, 0, SIZE)],
    "negative index": [result(DQ, DK), chunk(-1, 0, SIZE), chunk(0, 0, SIZE)],
    "unknown index": [result(DQ, DK), *BODY, chunk(2, 0, 8)],
    "chunks before the result": [*BODY, result(DQ, DK)],
    "two results": [result(DQ, DK), result(DQ, DK), *BODY],
    "one output": [result(DQ), BODY[0]],
    "three outputs": [result(DQ, DK, spec("grad_cos")), *BODY, chunk(2, 0, SIZE)],
    "twice the same": [result(DQ, DQ), *BODY],
    "swapped": [result(DK, DQ), *BODY],
    "another shape": [result(spec("grad_query", [2, 1, 8]), DK), chunk(0, 0, 64), BODY[1]],
    "another order": [result(spec("grad_query", [8, 1, 20000]), DK), *BODY],
    "another dtype": [
        result(
            spec("grad_query", data_type=tensor_pb2.DATA_TYPE_BFLOAT16, data_bytes=SIZE // 2), DK
        ),
        chunk(0, 0, SIZE // 2),
        BODY[1],
    ],
    "storage of 2": [
        result(spec("grad_query", storage_shape=[2], data_bytes=8), DK),
        chunk(0, 0, 8),
        BODY[1],
    ],
    "strides": [result(spec("grad_query", strides=[0, 8, 1]), DK), *BODY],
    "negative shape": [result(spec("grad_query", [-20000, 1, 8]), DK), *BODY],
    "terabytes": [result(spec("grad_query", [2**30, 1024, 8]), DK), *BODY],
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("client", ["sync", "aio"])
def test_a_stream_of_garbage_is_an_error(kind: str, client: str) -> None:
    """Whatever is wrong with the frames of a reply, it is a TransportError."""
    progress = pb.ExecuteProgress(state=pb.ExecuteProgress.STATE_UPLOADING)
    frames = [pb.ExecuteResponse(progress=progress).SerializeToString(), *STREAMS[kind]]
    once = opferry.RetryConfig(attempts=1)

    def call(address: str) -> None:
        with opferry.connect(address, retry=once, timeout=20) as connected:
            connected.apply_rotary_pos_emb_grad(**LARGE)

    async def call_aio(address: str) -> None:
        async with opferry.aio.connect(address, retry=once, timeout=20) as connected:
            await connected.apply_rotary_pos_emb_grad(**LARGE)

    act = call if client == "sync" else lambda address: asyncio.run(call_aio(address))
    with garbage(lambda: frames) as address, pytest.raises(errors.TransportError):
        act(address)


def _tensor(name: str, shape: list[int], size: int) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(spec=raw.spec(name, shape), data=bytes(size))


GOOD = _tensor("grad_query", [2, 1, 8], 64)
UNARY = {
    "empty": pb.ApplyRotaryPosEmbGradResponse(),
    "one output": pb.ApplyRotaryPosEmbGradResponse(grad_query=GOOD),
    "one byte short": pb.ApplyRotaryPosEmbGradResponse(
        grad_query=GOOD, grad_key=_tensor("grad_key", [2, 1, 8], 63)
    ),
    "another shape": pb.ApplyRotaryPosEmbGradResponse(
        grad_query=GOOD, grad_key=_tensor("grad_key", [1, 2, 8], 64)
    ),
    "swapped names": pb.ApplyRotaryPosEmbGradResponse(
        grad_query=_tensor("grad_key", [2, 1, 8], 64), grad_key=GOOD
    ),
    "too many": pb.ApplyRotaryPosEmbGradResponse(
        grad_query=GOOD,
        grad_key=_tensor("grad_key", [2, 1, 8], 64),
        grad_sin=_tensor("grad_sin", [2, 1, 8], 64),
    ),
}


@pytest.mark.parametrize("kind", UNARY)
def test_a_unary_reply_of_garbage_is_an_error(kind: str) -> None:
    """The same for a reply in one message."""
    with (
        garbage(list, unary=UNARY[kind]) as address,
        opferry.connect(address) as client,
        pytest.raises(errors.TransportError),
    ):
        client.apply_rotary_pos_emb_grad(**SMALL)


@pytest.mark.parametrize(
    "plan",
    [
        pb.PlanResponse(),
        pb.PlanResponse(template="A", outputs=[raw.spec("grad_query", [2, 1, 8])]),
        pb.PlanResponse(template="A", outputs=[tensor_pb2.TensorSpec(name="grad_query")]),
    ],
)
def test_a_plan_of_garbage_is_an_error(plan: pb.PlanResponse) -> None:
    """A plan that is not of the call is none."""
    with (
        garbage(list, plan=plan) as address,
        opferry.connect(address) as client,
        pytest.raises(errors.TransportError),
    ):
        client.plan_apply_rotary_pos_emb_grad(**SMALL)


def test_what_is_refused_is_not_copied() -> None:
    """A call over a limit, or against the contract, costs no memory of its tensors' size."""
    wide = np.broadcast_to(np.ones((1, 1, 1024), np.float32), (2**30, 1024, 1024))
    with (
        garbage(list) as address,
        opferry.connect(address) as client,
        pytest.raises(errors.TooLargeError),
    ):
        client.apply_rotary_pos_emb_grad(wide, wide, wide[:, :1], wide[:, :1], layout=4)
