"""The SDK as programs use it: connecting, errors, retries, timeouts, proxies, threads."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry._channel import channel_options, proxy_for
from opferry.config import ClientConfig
from opferry.core.problems import RULES, Problem, Reason
from tests.support import servers
from tests.support.calls import assert_same_bits, reference, tnd

ONCE = opferry.RetryConfig(attempts=1)
SOON = opferry.RetryConfig(unreachable_s=0.5)


@pytest.mark.parametrize("target", ["", "localhost", ":50051", "host:", "host:port"])
def test_a_target_is_host_and_port(target: str) -> None:
    """Anything else is refused at once, saying what a target is."""
    for connect in (opferry.connect, opferry.aio.connect):
        with pytest.raises(errors.RequestError, match="host:port"):
            connect(target)


def test_the_target_may_come_from_the_environment(
    cpu_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPFERRY_TARGET is used where no target is given, and named where it is missing."""
    with pytest.raises(errors.RequestError, match="OPFERRY_TARGET"):
        opferry.connect()
    monkeypatch.setenv("OPFERRY_TARGET", cpu_server)
    with opferry.connect() as client:
        assert client.server_info().serving


@pytest.mark.parametrize("value", [[[1.0]], 1.0, None, "x", memoryview(b"abcd")])
def test_an_input_is_a_numpy_array(client: opferry.Client, value: Any) -> None:
    """Lists, scalars and the like are refused by name; a missing one is missing."""
    arguments = {**tnd(), "cos": value}
    with pytest.raises(errors.RequestError, match="cos") as caught:
        client.apply_rotary_pos_emb_grad(**arguments)
    assert caught.value.argument == "cos"
    assert isinstance(caught.value, ValueError)


def test_unhashable_and_odd_attributes_are_refused(client: opferry.Client) -> None:
    """A layout that is a list, a float or a bool is no layout."""
    for layout in ([1], 1.5, True, None.__class__):
        with pytest.raises(errors.ContractError) as caught:
            client.apply_rotary_pos_emb_grad(**{**tnd(), "layout": layout})
        assert caught.value.argument == "layout"
    with pytest.raises(errors.ContractError) as caught:
        client.apply_rotary_pos_emb_grad(**tnd(), rotary_mode=3)  # type: ignore[arg-type]
    assert caught.value.argument == "rotary_mode"


def test_none_as_mode_means_half(client: opferry.Client) -> None:
    """A null rotaryModeOptional means half, as the vendor's call has it."""
    arguments = tnd()
    result = client.apply_rotary_pos_emb_grad(**arguments, rotary_mode=None)  # type: ignore[arg-type]
    assert_same_bits(result, reference(arguments))


@pytest.mark.parametrize("layout", ["TND", "tnd", 4, np.int64(4), opferry.Layout.TND])
def test_a_layout_has_many_spellings(client: opferry.Client, layout: Any) -> None:
    """Name, number and enum mean the same."""
    arguments = {**tnd(), "layout": layout}
    assert_same_bits(
        client.apply_rotary_pos_emb_grad(**arguments), reference({**arguments, "layout": 4})
    )


def test_repeats_have_a_limit(client: opferry.Client) -> None:
    """Repeat is 1 to the server's limit, refused here in the server's words."""
    for repeat in (0, -1, 1001):
        with pytest.raises(errors.TooLargeError, match="1 to 1000") as caught:
            client.apply_rotary_pos_emb_grad(**tnd(), repeat=repeat)
        assert caught.value.argument == "repeat"
        assert caught.value.request_id == ""


def test_an_unreachable_server_is_a_transport_error() -> None:
    """It names the address, is a ConnectionError, and takes no longer than asked for."""
    target = f"127.0.0.1:{servers.free_port()}"
    with (
        opferry.connect(target, retry=SOON) as client,
        pytest.raises(errors.TransportError, match=target) as caught,
    ):
        client.apply_rotary_pos_emb_grad(**tnd())
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.status.name == "UNAVAILABLE"
    assert caught.value.may_retry
    assert caught.value.__cause__ is not None

    async def scenario() -> None:
        async with opferry.aio.connect(target, retry=SOON) as client:
            await client.server_info()

    with pytest.raises(errors.TransportError, match=target):
        asyncio.run(scenario())


def test_a_silent_server_is_a_deadline_error() -> None:
    """Somebody listens and says nothing: the timeout is kept."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            opferry.connect(target, timeout=0.3) as client,
            pytest.raises(errors.DeadlineError) as caught,
        ):
            client.server_info()
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.status.name == "DEADLINE_EXCEEDED"


def test_a_server_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """The same client goes on after the server was stopped and started on its address."""
    first = servers.TcpServer(tmp_path)
    with opferry.connect(first.address) as client:
        arguments = tnd()
        client.apply_rotary_pos_emb_grad(**arguments)
        assert first.stop() == 0
        with ThreadPoolExecutor() as pool:
            call = pool.submit(client.apply_rotary_pos_emb_grad, **arguments)
            with servers.tcp(tmp_path, address=first.address):
                assert_same_bits(call.result(), reference(arguments))


def test_a_device_fault_is_never_tried_again() -> None:
    """Sending a request again that broke a device is the caller's decision."""
    with (
        servers.embedded("CrashBackend") as server,
        opferry.connect(server.address) as client,
    ):
        with pytest.raises(errors.DeviceFaultError):
            client.apply_rotary_pos_emb_grad(**tnd(cos=-9))
        assert client.server_info().workers[0].restart_count <= 1
        assert not RULES[Reason.DEVICE_FAULT].may_retry


def test_a_closed_client_says_so(cpu_server: str) -> None:
    """Calls after close are TransportErrors that say what to do; closing twice is harmless."""
    client = opferry.connect(cpu_server)
    client.server_info()
    client.close()
    client.close()
    with pytest.raises(errors.TransportError, match="connect again"):
        client.apply_rotary_pos_emb_grad(**tnd(4000))
    with pytest.raises(errors.TransportError, match="connect again"):
        client.server_info()

    async def scenario() -> None:
        closed = opferry.aio.connect(cpu_server)
        await closed.server_info()
        await closed.close()
        await closed.close()
        for tokens in (2, 4000):
            with pytest.raises(errors.TransportError, match="connect again"):
                await closed.apply_rotary_pos_emb_grad(**tnd(tokens))

    asyncio.run(scenario())


def test_closing_cancels_what_runs() -> None:
    """A call under way ends with an error when its client is closed, and does not hang."""
    with servers.embedded("SleepBackend") as server:
        client = opferry.connect(server.address, retry=ONCE)
        client.server_info()
        with ThreadPoolExecutor() as pool:
            for tokens in (2, 4000):
                call = pool.submit(client.apply_rotary_pos_emb_grad, **tnd(tokens, cos=3))
                assert not call.done()
            threading.Timer(0.3, client.close).start()
            with pytest.raises((errors.CallCancelledError, errors.TransportError)):
                call.result(timeout=20)


def test_one_client_serves_many_threads(cpu_server: str) -> None:
    """16 threads, small and large calls mixed, all right."""
    with opferry.connect(cpu_server) as client, ThreadPoolExecutor(16) as pool:

        def call(number: int) -> None:
            arguments = tnd(3000 if number % 4 == 0 else 3, seed=number)
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))

        list(pool.map(call, range(64)))


def test_the_asynchronous_client_serves_many_tasks(cpu_server: str) -> None:
    """The twin does the same in one event loop, and reports progress."""
    seen: list[opferry.Progress] = []

    async def scenario() -> None:
        async with opferry.aio.connect(cpu_server) as client:

            async def call(number: int) -> None:
                arguments = tnd(3000 if number % 4 == 0 else 3, seed=number)
                result = await client.apply_rotary_pos_emb_grad(
                    **arguments, checksum=True, on_progress=seen.append
                )
                assert_same_bits(result, reference(arguments))

            await asyncio.gather(*(call(number) for number in range(32)))
            plan = await client.plan_apply_rotary_pos_emb_grad(**tnd())
            assert plan.template == "BAB"
            with pytest.raises(errors.RequestError):
                await client.error_text("r-none")

    asyncio.run(scenario())
    assert {item.state for item in seen} >= {
        opferry.ProgressState.UPLOADING,
        opferry.ProgressState.RUNNING,
    }


def test_a_synchronous_call_inside_a_running_loop(cpu_server: str) -> None:
    """As in a notebook: the synchronous client works where an event loop runs."""

    async def cell() -> None:
        with opferry.connect(cpu_server) as client:
            arguments = tnd(4000)
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))

    asyncio.run(cell())


def test_an_exception_in_a_progress_callback_ends_the_call(cpu_server: str) -> None:
    """It reaches the caller as it is, and the server is free again."""

    def fail(_: opferry.Progress) -> None:
        raise LookupError("mine")

    with opferry.connect(cpu_server) as client:
        with pytest.raises(LookupError, match="mine"):
            client.apply_rotary_pos_emb_grad(**tnd(4000), on_progress=fail)
        arguments = tnd(4000)
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))


PROXY = "http://user:secret@proxy.example:3128"


@pytest.mark.parametrize(
    ("target", "environment", "expected"),
    [
        ("farm:1", {}, None),
        ("farm:1", {"https_proxy": PROXY}, "proxy.example:3128 (from https_proxy)"),
        ("farm:1", {"http_proxy": PROXY}, "proxy.example:3128 (from http_proxy)"),
        (
            "farm:1",
            {"grpc_proxy": PROXY, "http_proxy": "http://x:1"},
            "proxy.example:3128 (from grpc_proxy)",
        ),
        ("farm.lab:1", {"https_proxy": PROXY, "no_proxy": "a.b,lab"}, None),
        ("farm.lab:1", {"https_proxy": PROXY, "no_grpc_proxy": "lab", "no_proxy": "x"}, None),
        ("127.0.0.1:1", {"https_proxy": PROXY}, None),
        ("localhost:1", {"https_proxy": PROXY}, None),
    ],
)
def test_the_proxy_is_known(target: str, environment: dict[str, str], expected: str | None) -> None:
    """Which proxy gRPC will use, without its password; none for loopback."""
    found = proxy_for(target, environment)
    assert found == expected
    assert "secret" not in str(found)


def test_loopback_never_goes_through_a_proxy(
    cpu_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dead proxy in every variable, a server on this machine is reached all the same."""
    dead = f"http://127.0.0.1:{servers.free_port()}"
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, dead)
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with opferry.connect(cpu_server) as client:
        assert client.server_info().serving
    assert ("grpc.enable_http_proxy", 0) in channel_options(ClientConfig(cpu_server))
    assert ("grpc.enable_http_proxy", 0) not in channel_options(ClientConfig("farm:1"))


def test_an_error_names_the_proxy_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host behind a proxy that does not answer: the text says through what."""
    port = servers.free_port()
    monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{port}")
    for name in ("grpc_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with (
        opferry.connect("farm.example:50051", retry=ONCE, timeout=20) as client,
        pytest.raises(errors.TransportError, match=f"through the proxy 127.0.0.1:{port}") as caught,
    ):
        client.server_info()
    assert "secret" not in str(caught.value)


def test_errors_cross_process_boundaries() -> None:
    """An error survives pickling with every field."""
    error = errors.from_problem(
        Problem(next(iter(RULES)), "x is wrong", argument="x", aclnn_status=161002), "r-1"
    )
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "metadata",
    [{"X-Upper": "a"}, {"authorization": "a"}, {"x-opferry-device-lease": "a"}, {"x-a": "a\nb"}],
)
def test_metadata_that_cannot_be_sent_is_refused_by_its_key(metadata: dict[str, str]) -> None:
    with pytest.raises(errors.RequestError, match=next(iter(metadata))) as refused:
        opferry.connect("127.0.0.1:1", metadata=metadata)
    assert refused.value.argument == "metadata"
