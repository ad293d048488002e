"""Many small calls over one stream: each as good as a call of its own, whatever others do."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opferry
from opferry import errors, wire
from opferry._many import many_session
from opferry._result_buffers import ResultBuffers
from opferry.core.execution import ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.v1 import operator_service_pb2 as pb
from tests.support import raw, servers
from tests.support.calls import reference, tnd
from tests.support.processes import arena_count, eventually, rss_anon_bytes

OPERATOR = "apply_rotary_pos_emb_grad"
TND = {"layout": 4}


@pytest.fixture(scope="module")
def client() -> Iterator[opferry.Client]:
    with servers.embedded(workers=2) as server, opferry.connect(server.address) as connected:
        yield connected


def inputs(seed: int = 0, tokens: int = 2, **kinds: Any) -> dict[str, Any]:
    """Return the inputs of a call by name."""
    drawn = tnd(tokens, seed=seed, **kinds)
    del drawn["layout"]
    return drawn


def assert_right(outcome: opferry.CallOutcome, given: dict[str, Any]) -> None:
    expected = reference({**given, **TND})
    found = outcome.result().outputs
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name


def test_every_call_has_its_own_result_in_order(client: opferry.Client) -> None:
    """Of many shapes and both kinds; each is a request of its own."""
    given = [inputs(seed, 1 + seed % 5, with_query=seed % 2 == 0) for seed in range(500)]
    found = list(client.execute_many(OPERATOR, given, attributes=TND))
    assert [outcome.position for outcome in found] == list(range(500))
    for outcome, one in zip(found, given, strict=True):
        assert_right(outcome, one)
    ids = {outcome.result().execution.request_id for outcome in found}
    assert len(ids) == 500


def test_no_calls_have_no_outcomes(client: opferry.Client) -> None:
    """Nothing is sent, and nothing hangs."""
    assert list(client.execute_many(OPERATOR, [], attributes=TND)) == []


def test_what_is_wrong_with_one_call_is_its_own_affair(client: opferry.Client) -> None:
    """Whether it is refused here or on the server: the others have their results."""
    good = inputs()
    bad = {**good, "cos": np.ones((3, 1, 8), np.float32)}
    given = [bad if number % 3 == 1 else good for number in range(60)]
    for check in (True, False):
        found = list(client.execute_many(OPERATOR, given, attributes=TND, check=check))
        for number, outcome in enumerate(found):
            if number % 3 != 1:
                assert_right(outcome, good)
                continue
            assert isinstance(outcome.error, errors.ContractError if check else errors.OpFerryError)
            assert bool(outcome.error.request_id) is not check
            with pytest.raises(type(outcome.error)):
                outcome.result()


def test_thousands_that_are_refused_here_need_no_server(client: opferry.Client) -> None:
    """More of them than are drawn ahead, before one that is sent, and after it."""
    bad = {**inputs(), "cos": None}
    given = [*[bad] * 1000, inputs(1), *[bad] * 1000]
    found = list(client.execute_many(OPERATOR, given, attributes=TND))
    assert [outcome.error is None for outcome in found] == [one is not bad for one in given]


def test_a_large_call_among_small_ones_goes_its_own_way(client: opferry.Client) -> None:
    """What no message carries is run all the same, in its place."""
    given = [inputs(seed, 3000 if seed in (0, 7) else 2, width=64) for seed in range(20)]
    for outcome, one in zip(
        client.execute_many(OPERATOR, given, attributes=TND), given, strict=True
    ):
        assert_right(outcome, one)


def test_options_hold_for_every_call(client: opferry.Client) -> None:
    """Digests, repeats and the package that is asked for."""
    given = [inputs(seed) for seed in range(8)]
    found = list(
        client.execute_many(
            OPERATOR, given, attributes=TND, checksum=True, repeat=3, deterministic=True
        )
    )
    for outcome, one in zip(found, given, strict=True):
        assert_right(outcome, one)
        assert len(outcome.result().execution.timings.kernel_ns) == 3
    unknown = client.execute_many(OPERATOR, given, attributes=TND, operator_package="none")
    assert {outcome.error.reason for outcome in unknown if outcome.error is not None} == {
        "OPERATOR_PACKAGE_UNKNOWN"
    }
    with pytest.raises(errors.RequestError, match="no_such"):
        client.execute_many("no_such", given)


def test_calls_are_drawn_as_they_are_sent_and_an_early_end_leaves_nothing() -> None:
    """An endless run that is given up leaves no memory there and no thread here."""
    with (
        servers.embedded(limits={"idle_memory_bytes": 0}) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        client.apply_rotary_pos_emb_grad(**tnd())
        before = threading.active_count()
        for count in (1, 10, 300):
            drawn = itertools.count()
            endless = (inputs(next(drawn)) for _ in itertools.repeat(None))
            outcomes = client.execute_many(OPERATOR, endless, attributes=TND)
            for position in range(count):
                assert_right(next(outcomes), inputs(position))
            outcomes.close()
            assert next(drawn) < count + 400
        assert eventually(lambda: threading.active_count() <= before), threading.enumerate()
        assert eventually(lambda: arena_count(server.pid) == 0)
        assert eventually(lambda: client.server_info().workers[0].running_count == 0)


def test_a_single_call_finds_its_way_through_ten_thousand() -> None:
    """Somebody else's stream of many calls does not fill the line."""
    with (
        servers.embedded(limits={"queue_count": 16}) as server,
        opferry.connect(server.address) as busy,
        opferry.connect(server.address, retry=opferry.RetryConfig(attempts=1)) as other,
    ):
        endless = itertools.repeat(inputs())
        outcomes = busy.execute_many(OPERATOR, endless, attributes=TND)
        stop = threading.Event()

        def consume() -> None:
            for outcome in outcomes:
                outcome.result()
                if stop.is_set():
                    return

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            for seed in range(20):
                result = other.apply_rotary_pos_emb_grad(**tnd(seed=seed))
                expected = reference(tnd(seed=seed))["grad_query"]
                assert result.grad_query.tobytes() == expected.tobytes()
        finally:
            stop.set()
            consumer.join()
            outcomes.close()


@pytest.mark.full
def test_a_server_that_is_started_again_loses_no_call(tmp_path: Path) -> None:
    """Killed in the middle: what has no outcome yet is sent again."""
    server = servers.TcpServer(tmp_path)
    address = server.address
    try:
        with opferry.connect(
            address, timeout=60, retry=opferry.RetryConfig(longest_wait_s=0.5)
        ) as client:
            given = [inputs(seed) for seed in range(600)]
            for outcome, one in zip(
                client.execute_many(OPERATOR, given, attributes=TND), given, strict=True
            ):
                assert_right(outcome, one)
                if outcome.position == 100:
                    server.process.kill()
                    server.process.wait()
                    server = servers.TcpServer(tmp_path, address=address)
    finally:
        server.stop()


def test_a_server_that_does_not_come_back_is_given_up(tmp_path: Path) -> None:
    """Every call has an outcome: a result, or why there is none."""
    once = opferry.RetryConfig(attempts=2, total_s=1.0, reconnect_s=1.0)
    with (
        servers.tcp(tmp_path) as server,
        opferry.connect(server.address, timeout=20, retry=once) as client,
    ):
        found = []
        for outcome in client.execute_many(OPERATOR, [inputs()] * 1000, attributes=TND):
            found.append(outcome)
            if len(found) == 5:
                server.process.kill()
                server.process.wait()
    assert [outcome.position for outcome in found] == list(range(1000))
    assert isinstance(found[-1].error, errors.TransportError)
    assert all((outcome.error is None) != (outcome.value is None) for outcome in found)


def test_the_aio_twin_returns_the_same(client: opferry.Client) -> None:
    """Two runs at a time, one of them with calls that go wrong or are large."""
    small = [inputs(seed) for seed in range(100)]
    mixed = [*small, {**inputs(), "sin": None}, inputs(1, 3000, width=64)]

    async def run(connected: Any, given: list[Any]) -> list[opferry.CallOutcome]:
        return [one async for one in await connected.execute_many(OPERATOR, given, attributes=TND)]

    async def main() -> None:
        async with opferry.aio.connect(client.config.target, timeout=60) as connected:
            first, second = await asyncio.gather(run(connected, small), run(connected, mixed))
        for outcome, one in zip(first, small, strict=True):
            assert_right(outcome, one)
        assert isinstance(second[100].error, errors.ContractError)
        for outcome, one in zip(second, mixed, strict=True):
            if outcome.position != 100:
                assert_right(outcome, one)

    asyncio.run(main())


def test_calls_travel_by_the_dozen() -> None:
    """However slowly results come back: a message for each would cost as much as the call."""
    count = 500
    session = many_session(
        OPERATOR,
        (inputs(seed) for seed in range(count)),
        LimitsConfig(),
        ResultBuffers(0),
        ExecutionOptions(),
        attributes=TND,
        operator_package="",
        keep_strides=False,
        checksum=False,
    )
    refused = wire.status_from_problem(Problem(Reason.TENSOR_MALFORMED, "no"), "r-1")
    messages = [session.header()]
    answered = 0
    while answered < count:
        assert answered < sum(map(calls_in, messages)), "the server has nothing to do"
        error = pb.ManyResult(call_id=answered, error=refused.SerializeToString())
        session.receive(pb.ExecuteManyResponse(results=[error]).SerializeToString())
        answered += 1
        messages += [frame for some in session.to_send() for frame in some]
        assert len(list(session.results())) == 1
    assert sum(map(calls_in, messages)) == count
    assert len(messages) < count / 16


def calls_in(message: bytes) -> int:
    return len(pb.ExecuteManyRequest.FromString(message).calls)


def request_of(seed: int = 0) -> Any:
    """Return the request of a call's own method, as a foreign client builds it."""
    request = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND)
    for item in raw.small_specs():
        tensor = getattr(request, item.name)
        tensor.spec.CopyFrom(item)
        values = np.random.default_rng(abs(seed)).standard_normal(item.data_bytes // 4, np.float32)
        tensor.data = values.tobytes()
    return request


def talk(address: str, messages: list[bytes]) -> list[pb.ManyResult]:
    """Send messages on an ExecuteMany stream and return the results; raises our errors."""
    with grpc.insecure_channel(address) as channel:
        method: Any = channel.stream_stream(wire.methods["ExecuteMany"].path)
        try:
            frames = list(method(iter(messages), timeout=20))
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address) from error
    return [
        result for frame in frames for result in pb.ExecuteManyResponse.FromString(frame).results
    ]


def test_a_foreign_client_groups_calls_as_it_likes(client: opferry.Client) -> None:
    """One or many to a message, an empty message, any numbers for calls; all are answered once."""
    calls = [
        pb.ManyCall(call_id=number, apply_rotary_pos_emb_grad=request_of(number))
        for number in (7, -1, 0, 2**62, *range(100, 260))
    ]
    groups = [[], calls[:1], calls[1:4], [], calls[4:]]
    messages = [pb.ExecuteManyRequest(calls=group).SerializeToString() for group in groups]
    results = talk(client.config.target, messages)
    assert sorted(result.call_id for result in results) == sorted(call.call_id for call in calls)
    assert {result.WhichOneof("response") for result in results} == {"apply_rotary_pos_emb_grad"}
    assert not any(result.error for result in results)


def test_what_a_foreign_client_gets_wrong_is_told_where_it_went_wrong(
    client: opferry.Client,
) -> None:
    """In a call: by its result. In the stream: by its end."""
    address = client.config.target
    torn = request_of()
    torn.cos.data = torn.cos.data[:-1]
    unknown = pb.ManyCall(call_id=3, apply_rotary_pos_emb_grad=request_of())
    unknown.MergeFromString(b"\xf8\x07\x01")
    calls = [
        pb.ManyCall(call_id=1),
        pb.ManyCall(call_id=2, apply_rotary_pos_emb_grad=torn),
        unknown,
        pb.ManyCall(call_id=4, apply_rotary_pos_emb_grad=request_of()),
    ]
    results = talk(address, [pb.ExecuteManyRequest(calls=calls).SerializeToString()])
    told = {
        result.call_id: errors.from_status(result.error).reason if result.error else ""
        for result in results
    }
    assert told == {
        1: "OPERATOR_NOT_SUPPORTED",
        2: "TENSOR_MALFORMED",
        3: "FIELD_UNKNOWN",
        4: "",
    }
    assert all(errors.from_status(r.error).request_id for r in results if r.error)
    for message in (b"\xff", b"\xf8\x07\x01"):
        with pytest.raises(errors.RequestError):
            talk(address, [message])


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """Results that nobody takes are not piled up: the server stops reading."""
    drawn = 0
    call = pb.ManyCall(apply_rotary_pos_emb_grad=request_of())
    for name in ("grad_query_embed", "grad_key_embed", "cos", "sin"):
        tensor = getattr(call.apply_rotary_pos_emb_grad, name)
        tensor.spec.CopyFrom(raw.spec(name, (128, 1, 128)))
        tensor.data = bytes(tensor.spec.data_bytes)
    message = pb.ExecuteManyRequest(calls=[call]).SerializeToString()

    def endless() -> Iterator[bytes]:
        nonlocal drawn
        while True:
            drawn += 1
            yield message

    def stands_still() -> bool:
        before = drawn
        time.sleep(1.0)
        return drawn == before

    with servers.embedded() as server, grpc.insecure_channel(server.address) as channel:
        method: Any = channel.stream_stream(wire.methods["ExecuteMany"].path)
        responses = method(endless())
        assert eventually(stands_still, 30)
        resident = rss_anon_bytes(server.pid)
        assert stands_still()
        assert rss_anon_bytes(server.pid) < resident + 16 * 2**20
        responses.cancel()
        with opferry.connect(server.address) as client:
            assert eventually(lambda: client.server_info().workers[0].running_count == 0)


def test_messages_are_no_larger_than_the_server_takes_or_sends() -> None:
    """Calls, and results, of more than half of what a message holds, and small ones between."""
    limits = {"message_bytes": 48 * 1024, "unary_bytes": 32 * 1024}
    heads = {"query_heads": 6, "key_heads": 5, "width": 64, "with_query": False}
    given = [inputs(seed, 1 if seed % 4 == 0 else 9, **heads) for seed in range(200)]
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        found = list(client.execute_many(OPERATOR, given, attributes=TND))
    for outcome, one in zip(found, given, strict=True):
        assert_right(outcome, one)
        assert outcome.result().execution.timings.download_ns == 0, "over the stream"


def test_a_client_that_falls_silent_is_sent_away() -> None:
    """When nothing is under way and nothing comes for `stream_idle_ms`."""
    with servers.embedded(limits={"stream_idle_ms": 300}) as server:
        never = threading.Event()

        def frames() -> Iterator[bytes]:
            yield pb.ExecuteManyRequest().SerializeToString()
            never.wait(20)

        with grpc.insecure_channel(server.address) as channel:
            method: Any = channel.stream_stream(wire.methods["ExecuteMany"].path)
            with pytest.raises(grpc.RpcError) as caught:
                list(method(frames(), timeout=20))
            never.set()
        error: Any = caught.value
        assert errors.from_rpc_error(error, server.address).reason == "STREAM_IDLE"
