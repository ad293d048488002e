"""Queue, overload, deadlines, cancels and shutdown."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import opferry
from opferry import errors
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.processes import arena_count, eventually

ONCE = opferry.RetryConfig(attempts=1)


def running_count(client: opferry.Client) -> int:
    return sum(worker.running_count for worker in client.server_info().workers)


@pytest.mark.parametrize("kind", ["unary", "stream", "shared memory"])
def test_a_deadline_takes_a_request_out_of_the_queue(kind: str) -> None:
    """B, queued behind A with a short deadline, is never launched; C after A is served."""
    tokens = 2 if kind == "unary" else 4000
    with (
        servers.embedded("SleepBackend") as server,
        opferry.connect(
            server.address, retry=ONCE, shared_memory=kind == "shared memory"
        ) as client,
        ThreadPoolExecutor() as pool,
    ):
        a = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=1.5))
        assert eventually(lambda: running_count(client) == 1)
        started = time.monotonic()
        with pytest.raises(errors.DeadlineError) as caught:
            client.apply_rotary_pos_emb_grad(**tnd(tokens, cos=9), timeout=0.2)
        assert time.monotonic() - started < 1.0
        assert isinstance(caught.value, TimeoutError)
        arguments = tnd(cos=0)
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        a.result()
        # had B been launched, C would have waited 9 seconds for it
        assert time.monotonic() - started < 8


def test_a_cancelled_request_leaves_the_queue_and_frees_its_memory() -> None:
    """Cancelling while queued, uploading and running gives every byte back."""
    with servers.embedded("SleepBackend", limits={"idle_memory_bytes": 0}) as server:

        async def scenario() -> None:
            async with opferry.aio.connect(server.address, retry=ONCE) as client:
                call = client.apply_rotary_pos_emb_grad
                running = asyncio.create_task(call(**tnd(cos=4)))
                while not (await client.server_info()).workers[0].running_count:
                    await asyncio.sleep(0.01)
                waiting: set[str] = set()

                def note(progress: opferry.Progress) -> None:
                    if progress.state is opferry.ProgressState.QUEUED:
                        waiting.add(progress.request_id)

                queued = [
                    asyncio.create_task(call(**tnd(4000, cos=60), on_progress=note))
                    for _ in range(5)
                ]
                while len(waiting) < 5:
                    await asyncio.sleep(0.01)
                for task in (*queued, running):
                    task.cancel()
                outcomes = await asyncio.gather(*queued, running, return_exceptions=True)
                assert all(isinstance(item, asyncio.CancelledError) for item in outcomes)
                arguments = tnd(cos=0)
                assert_same_bits(await call(**arguments), reference(arguments))

        # were one of the five launched, its minute would have to pass first
        asyncio.run(asyncio.wait_for(scenario(), 50))
        assert eventually(lambda: arena_count(server.pid) == 0)


def test_a_full_queue_refuses_at_once_with_a_hint() -> None:
    """2 workers, 8 places, 100 calls at once: 90 refusals, and 10 right results."""
    with (
        servers.embedded("SleepBackend", workers=2, limits={"queue_count": 8}) as server,
        opferry.connect(server.address, retry=ONCE) as client,
        ThreadPoolExecutor(100) as pool,
    ):
        client.server_info()
        arguments = tnd(cos=1.0)
        expected = reference(arguments)

        def call(_: int) -> errors.ServerBusyError | None:
            try:
                assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), expected)
            except errors.ServerBusyError as busy:
                return busy
            return None

        outcomes = list(pool.map(call, range(100)))
        refused = [busy for busy in outcomes if busy is not None]
        assert len(refused) == 90
        for busy in refused:
            assert busy.reason == "SERVER_BUSY"
            assert busy.status.name == "UNAVAILABLE"
            assert busy.may_retry
            assert busy.retry_after_s is not None
            assert 0 < busy.retry_after_s <= 30


@pytest.mark.full
@pytest.mark.parametrize("clients", ["threads", "tasks"])
def test_with_retries_every_call_gets_through(clients: str) -> None:
    """The same overload with the SDK's own retries: all 100 calls succeed."""
    with servers.embedded("SleepBackend", workers=2, limits={"queue_count": 8}) as server:
        arguments = tnd(cos=0.05)
        expected = reference(arguments)
        if clients == "threads":
            with (
                opferry.connect(server.address) as client,
                ThreadPoolExecutor(100) as pool,
            ):
                calls = [
                    pool.submit(client.apply_rotary_pos_emb_grad, **arguments) for _ in range(100)
                ]
                results = [call.result() for call in calls]
        else:

            async def scenario() -> list[opferry.ApplyRotaryPosEmbGradResult]:
                async with opferry.aio.connect(server.address) as client:
                    return await asyncio.gather(
                        *(client.apply_rotary_pos_emb_grad(**arguments) for _ in range(100))
                    )

            results = asyncio.run(scenario())
        for result in results:
            assert_same_bits(result, expected)


def test_a_waiting_client_is_told_its_place() -> None:
    """Positions count down from the end of the line to the front, then come upload and run."""
    seen: list[opferry.Progress] = []
    with (
        servers.embedded("SleepBackend") as server,
        opferry.connect(server.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=0.5))
        assert eventually(lambda: running_count(client) == 1)
        second = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=0.5))
        time.sleep(0.2)
        result = client.apply_rotary_pos_emb_grad(**tnd(4000, cos=0), on_progress=seen.append)
        first.result()
        second.result()
    states = [item.state for item in seen]
    assert states[0] is opferry.ProgressState.UPLOADING
    assert states[-1] is opferry.ProgressState.RUNNING
    places = [item.position for item in seen if item.state is opferry.ProgressState.QUEUED]
    assert places == [1, 0]
    assert {item.request_id for item in seen} == {result.execution.request_id}


def test_without_room_nothing_is_uploaded() -> None:
    """A request whose memory is not free waits before its upload, and then succeeds."""
    seen: list[opferry.ProgressState] = []
    one_call = tnd(4000)
    size = sum(a.nbytes for a in one_call.values() if hasattr(a, "nbytes")) * 2
    with (
        servers.embedded("SleepBackend", workers=2, limits={"memory_bytes": size}) as server,
        opferry.connect(server.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(4000, cos=0.5))
        assert eventually(lambda: running_count(client) == 1)
        arguments = tnd(4000, cos=0)
        result = client.apply_rotary_pos_emb_grad(
            **arguments, on_progress=lambda progress: seen.append(progress.state)
        )
        first.result()
    assert_same_bits(result, reference(arguments))
    state = opferry.ProgressState
    assert seen == [state.QUEUED, state.UPLOADING, state.RUNNING]


def test_a_queue_limit_in_time_is_kept() -> None:
    """Who waits longer than queue_ms is ended with QUEUE_DEADLINE."""
    with (
        servers.embedded("SleepBackend", limits={"queue_ms": 200}) as server,
        opferry.connect(server.address) as client,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=1))
        assert eventually(lambda: running_count(client) == 1)
        with pytest.raises(errors.DeadlineError, match="200 ms") as caught:
            client.apply_rotary_pos_emb_grad(**tnd(cos=0))
        assert caught.value.reason == "QUEUE_DEADLINE"
        first.result()


def test_a_run_limit_in_time_is_kept() -> None:
    """Who runs longer than run_ms is ended with its worker, and the next request is served."""
    with (
        servers.embedded("SleepBackend", limits={"run_ms": 300}) as server,
        opferry.connect(server.address) as client,
    ):
        with pytest.raises(errors.DeadlineError, match=r"0\.3 s") as caught:
            client.apply_rotary_pos_emb_grad(**tnd(cos=60))
        assert caught.value.reason == "RUN_DEADLINE"
        arguments = tnd(cos=0)
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert client.server_info().workers[0].restart_count == 1


def test_an_idle_upload_is_ended() -> None:
    """A stream on which nothing is sent is ended with STREAM_IDLE, and holds nothing."""
    with servers.embedded(limits={"stream_idle_ms": 300, "idle_memory_bytes": 0}) as server:
        for frames in ([], [raw.header_frame()], [raw.header_frame(), raw.body()[0]]):
            never = threading.Event()
            with pytest.raises(errors.DeadlineError, match="sent nothing for 300 ms") as caught:
                raw.stream(server.address, raw.slowly(frames, never))
            never.set()
            assert caught.value.reason == "STREAM_IDLE"
        assert eventually(lambda: arena_count(server.pid) == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_server(tmp_path: Path, number: signal.Signals) -> None:
    """What runs ends well, what waits is sent away with a hint, exit status 0."""
    with (
        servers.tcp(tmp_path, "SleepBackend") as server,
        opferry.connect(server.address, retry=ONCE) as client,
        ThreadPoolExecutor() as pool,
    ):
        arguments = tnd(cos=1)
        running = pool.submit(client.apply_rotary_pos_emb_grad, **arguments)
        assert eventually(lambda: running_count(client) == 1)
        waiting = [
            pool.submit(client.apply_rotary_pos_emb_grad, **tnd(tokens, cos=0))
            for tokens in (2, 4000)
        ]
        time.sleep(0.3)
        server.process.send_signal(number)
        assert_same_bits(running.result(), reference(arguments))
        for call in waiting:
            with pytest.raises(errors.ServerBusyError) as caught:
                call.result()
            assert caught.value.reason == "SHUTTING_DOWN"
            assert caught.value.retry_after_s is not None
        assert server.process.wait(30) == 0
        with pytest.raises(errors.TransportError, match="UNAVAILABLE"):
            client.server_info()


def test_the_grace_time_is_kept(tmp_path: Path) -> None:
    """What runs longer than the grace time is cut off, and the server still ends with 0."""
    with (
        servers.tcp(tmp_path, "SleepBackend", lines=("grace_s = 0.3",)) as server,
        opferry.connect(server.address, retry=ONCE) as client,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=60))
        assert eventually(lambda: running_count(client) == 1)
        assert server.stop() == 0
        with pytest.raises(errors.OpFerryError):
            running.result()
