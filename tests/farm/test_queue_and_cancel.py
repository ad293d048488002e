"""Who waits, and ending requests: one's own, by id and by stream; never another tenant's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from tests.support import servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.credentials import TokenFile
from tests.support.processes import arena_count, eventually

ONCE = opferry.RetryConfig(attempts=1)

LONG_S = 3.0


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens.toml")
    return {
        "a": file.add("a"),
        "b": file.add("b"),
        "viewer": file.add("b", "viewer"),
        "admin": file.add("c", "admin"),
    }


@pytest.fixture
def server(tmp_path: Path, tokens: dict[str, str]) -> Iterator[servers.TcpServer]:
    lines = ('server_id = "lab-7"', *TokenFile.lines_of(tmp_path / "tokens.toml"))
    with servers.tcp(
        tmp_path, "SleepBackend", lines=lines, credentials={"token": tokens["a"]}
    ) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def call(
    client: opferry.Client,
    pool: ThreadPoolExecutor,
    seconds: float,
    tokens: int = 2,
    **options: Any,
) -> Future[Any]:
    return pool.submit(client.apply_rotary_pos_emb_grad, **tnd(tokens, cos=seconds), **options)


def test_the_queue_is_told_in_its_order_and_ids_to_who_may_know_them(
    server: servers.TcpServer, tokens: dict[str, str], pool: ThreadPoolExecutor
) -> None:
    connected = {
        name: opferry.connect(server.address, token=token, retry=ONCE)
        for name, token in tokens.items()
    }
    a, b = connected["a"], connected["b"]
    running = call(a, pool, LONG_S)
    assert eventually(lambda: [each.state for each in a.queue().requests] == ["running"])
    waiting = [call(a, pool, 0, priority="batch"), call(b, pool, 0)]
    assert eventually(lambda: len(a.queue().requests) == 3)
    seen = a.queue()
    assert seen.server_id == "lab-7"
    assert [each.tenant for each in seen.requests] == ["a", "b", "a"]
    assert [each.priority for each in seen.requests] == ["interactive", "interactive", "batch"]
    assert [each.position for each in seen.requests[1:]] == [0, 1]
    assert seen.requests[0].worker == "worker-0"
    assert [bool(each.request_id) for each in seen.requests] == [True, False, True]
    assert all(each.request_id.startswith("lab-7-") for each in connected["admin"].queue().requests)
    assert [bool(each.request_id) for each in connected["viewer"].queue().requests] == [
        False,
        True,
        False,
    ]
    for future in (running, *waiting):
        future.result()
    assert not a.queue().requests
    for client in connected.values():
        client.close()


@pytest.mark.parametrize(
    ("size", "shared"),
    [(2, False), (4000, False), (4000, True)],
    ids=["unary", "stream", "shared memory"],
)
def test_what_waits_ends_at_once_and_what_runs_is_dropped(
    server: servers.TcpServer,
    tokens: dict[str, str],
    pool: ThreadPoolExecutor,
    size: int,
    shared: bool,
) -> None:
    """The caller hears CANCELLED; the next request is served; all memory comes back."""
    given = {"token": tokens["a"], "retry": ONCE, "shared_memory": shared}
    with opferry.connect(server.address, **given) as client:
        running = call(client, pool, LONG_S, size)
        assert eventually(lambda: [each.state for each in client.queue().requests] == ["running"])
        waiting = call(client, pool, 60, size)
        assert eventually(lambda: len(client.queue().requests) == 2)
        first, second = (each.request_id for each in client.queue().requests)
        assert client.cancel(second) is False
        with pytest.raises(errors.CallCancelledError) as ended:
            waiting.result(10)
        assert ended.value.reason == "CANCELLED"
        assert ended.value.request_id == second
        assert client.cancel(first) is True
        with pytest.raises(errors.CallCancelledError):
            running.result(10)
        with pytest.raises(errors.RequestError, match="no request") as unknown:
            client.cancel(second)
        assert unknown.value.reason == "REQUEST_UNKNOWN"
        arguments = tnd(cos=0)
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert not client.queue().requests


def test_nobody_ends_or_learns_of_another_tenants_request(
    server: servers.TcpServer, tokens: dict[str, str], pool: ThreadPoolExecutor
) -> None:
    """To B it looks as one that does not exist; a viewer may end nothing; an admin may."""
    with (
        opferry.connect(server.address, token=tokens["a"], retry=ONCE) as a,
        opferry.connect(server.address, token=tokens["b"], retry=ONCE) as b,
        opferry.connect(server.address, token=tokens["viewer"], retry=ONCE) as viewer,
        opferry.connect(server.address, token=tokens["admin"], retry=ONCE) as admin,
    ):
        running = call(a, pool, LONG_S)
        assert eventually(lambda: len(a.queue().requests) == 1)
        (own,) = a.queue().requests
        texts = []
        for request_id in (own.request_id, "lab-7-0123456789abcdef"):
            with pytest.raises(errors.RequestError) as refused:
                b.cancel(request_id)
            texts.append(str(refused.value.message).replace(request_id, "ID"))
        assert texts[0] == texts[1]
        with pytest.raises(errors.AccessError, match="role is viewer"):
            viewer.cancel(own.request_id)
        assert admin.cancel(own.request_id)
        with pytest.raises(errors.CallCancelledError):
            running.result(10)


@pytest.mark.parametrize("kind", ["many", "validate"])
def test_the_id_of_a_stream_ends_all_of_it(
    server: servers.TcpServer, tokens: dict[str, str], pool: ThreadPoolExecutor, kind: str
) -> None:
    """Its caller hears CANCELLED, and nothing of it stays inside."""
    with (
        opferry.connect(server.address, token=tokens["a"], retry=ONCE) as a,
        opferry.connect(server.address, token=tokens["b"], retry=ONCE) as b,
    ):
        arguments = tnd(cos=LONG_S)
        attributes = {"layout": arguments.pop("layout")}

        def work() -> list[Any]:
            if kind == "many":
                found = a.execute_many(
                    "apply_rotary_pos_emb_grad", [arguments] * 20, attributes=attributes
                )
                return [outcome.result() for outcome in found]
            return [
                a.validate("apply_rotary_pos_emb_grad", arguments, attributes=attributes)
                for _ in range(20)
            ]

        streaming = pool.submit(work)
        assert eventually(lambda: any(each.stream_id for each in a.queue().requests), 30)
        stream_id = next(each.stream_id for each in a.queue().requests if each.stream_id)
        with pytest.raises(errors.RequestError):
            b.cancel(stream_id)
        assert a.cancel(stream_id) is False
        with pytest.raises(errors.OpFerryError) as ended:
            streaming.result(30)
        assert ended.value.reason == "CANCELLED"
        assert eventually(lambda: not a.queue().requests)


def test_two_requests_are_ended_by_the_asynchronous_client(
    server: servers.TcpServer, tokens: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with opferry.aio.connect(server.address, token=tokens["a"], retry=ONCE) as client:
            tasks = [
                asyncio.ensure_future(client.apply_rotary_pos_emb_grad(**tnd(cos=LONG_S)))
                for _ in range(2)
            ]
            while len((await client.queue()).requests) < 2:
                await asyncio.sleep(0.01)
            for each in (await client.queue()).requests:
                await client.cancel(each.request_id)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, errors.CallCancelledError) for each in outcomes)

    asyncio.run(scenario())


def opferry_command(*words: str, token: str, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opferry.cli", *words, "--target", target],
        env={**os.environ, "OPFERRY_TOKEN": token, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.full
def test_the_commands_ask_every_server_and_name_the_silent(
    server: servers.TcpServer, tokens: dict[str, str], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Of two servers, one gone: its absence is told, and the other's request found and ended."""
    gone = f"127.0.0.1:{servers.free_port()}"
    both = f"{gone},{server.address}"
    with opferry.connect(server.address, token=tokens["a"], retry=ONCE) as a:
        running = call(a, pool, 20)
        assert eventually(lambda: len(a.queue().requests) == 1)
        (own,) = a.queue().requests
        shown = opferry_command("queue", token=tokens["a"], target=both)
        assert shown.returncode == 0, shown.stderr
        assert own.request_id in shown.stdout
        assert f"{gone} did not answer" in shown.stderr
        listed = json.loads(
            opferry_command("queue", "--json", token=tokens["a"], target=both).stdout
        )
        assert [bool(each["error"]) for each in listed] == [True, False]
        ended = opferry_command("cancel", own.request_id, token=tokens["a"], target=both)
        assert ended.returncode == 0, ended.stderr
        assert "its device finishes the run" in ended.stdout
        with pytest.raises(errors.CallCancelledError):
            running.result(10)
        gone_id = "lab-7-0123456789abcdef"
        again = opferry_command("cancel", gone_id, token=tokens["a"], target=both)
        assert again.returncode == 3
        assert gone in again.stderr
        nowhere = opferry_command("cancel", gone_id, token=tokens["a"], target=server.address)
        assert nowhere.returncode == 1
        assert "no such request that you may end is inside lab-7" in nowhere.stderr
        other = opferry_command("cancel", "x-1-1", token=tokens["a"], target=server.address)
        assert (other.returncode, "another server's than lab-7" in other.stderr) == (1, True)
        denied = opferry_command("cancel", gone_id, token=tokens["viewer"], target=server.address)
        assert (denied.returncode, "role is viewer" in denied.stderr) == (2, True)
        assert "did not answer" not in denied.stderr
    seen = opferry_command("queue", token=tokens["b"], target=server.address)
    assert "lab-7-..." in seen.stdout, "what A has ended, the device still runs"
    assert own.request_id not in seen.stdout
    silent = opferry_command("queue", token=tokens["a"], target=gone)
    assert silent.returncode == 3


@pytest.mark.full
def test_cancelled_requests_give_their_memory_back(
    tmp_path: Path, tokens: dict[str, str], pool: ThreadPoolExecutor
) -> None:
    lines = TokenFile.lines_of(tmp_path / "tokens.toml")
    with (
        servers.tcp(
            tmp_path,
            "SleepBackend",
            lines=lines,
            limits={"idle_memory_bytes": 0},
            credentials={"token": tokens["a"]},
        ) as server,
        opferry.connect(server.address, token=tokens["a"], retry=ONCE) as client,
    ):
        futures = [call(client, pool, LONG_S, 4000) for _ in range(5)]
        assert eventually(lambda: len(client.queue().requests) == 5)
        for each in client.queue().requests:
            client.cancel(each.request_id)
        for future in futures:
            with pytest.raises(errors.CallCancelledError):
                future.result(10)
        assert eventually(lambda: arena_count(server.pid) == 0, 10)


@pytest.mark.full
def test_who_waits_is_told_for_how_long(
    server: servers.TcpServer, tokens: dict[str, str], pool: ThreadPoolExecutor
) -> None:
    """By the SDK, as soon as the request is there."""
    with opferry.connect(server.address, token=tokens["a"], retry=ONCE) as client:
        client.apply_rotary_pos_emb_grad(**tnd(4000, cos=2.0))  # so the server knows
        running = call(client, pool, 6.0, 4000)
        assert eventually(lambda: [each.state for each in client.queue().requests] == ["running"])
        told: list[opferry.Progress] = []
        waiting = call(client, pool, 0, 4000, on_progress=told.append)
        assert eventually(lambda: len(client.queue().requests) == 2)
        running.result(20)
        waiting.result(20)
    waits = [each.expected_wait_s for each in told if each.state.value == "queued"]
    assert 1 < max(waits) < 6


@pytest.mark.full
def test_the_command_line_tells_of_a_wait(
    server: servers.TcpServer, tokens: dict[str, str], tmp_path: Path
) -> None:
    """As long as somebody else has leased the device, and is then done."""
    arrays = {name: value for name, value in tnd(40_000, cos=0).items() if name != "layout"}
    np.savez(tmp_path / "in.npz", **{n: value for n, value in arrays.items() if value is not None})
    words = ("run", "-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz"))
    with opferry.connect(server.address, token=tokens["b"], retry=ONCE) as other:
        with other.lease_device(100):
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "opferry.cli", *words, "--layout", "TND"),
                    *("--target", server.address),
                ],
                env={**os.environ, "OPFERRY_TOKEN": tokens["a"]},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            assert process.stderr is not None
            line = process.stderr.readline()
            assert re.fullmatch(r"lab-7-\w+ waits: \d before it, about \d+ s\n", line)
        process.communicate(timeout=60)
        assert process.returncode == 0
