"""Devices of one's own: granted when idle, kept from others, given back whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import errors
from tests.support import servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.credentials import TokenFile
from tests.support.processes import eventually

ONCE = opferry.RetryConfig(attempts=1)

Connect = Callable[[str], opferry.Client]


class Shared:
    """A server with some devices, and a token for each of two tenants."""

    def __init__(self, folder: Path, workers: int, *lines: str) -> None:
        file = TokenFile(folder / "tokens.toml")
        self.tokens = {tenant: file.add(tenant) for tenant in "ab"}
        self.server = servers.TcpServer(
            folder,
            "SleepBackend",
            workers,
            lines=(*lines, *file.lines),
            credentials={"token": self.tokens["a"]},
        )

    def connect(self, tenant: str, **options: Any) -> opferry.Client:
        return opferry.connect(
            self.server.address, token=self.tokens[tenant], retry=ONCE, **options
        )


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Shared]:
    """A server with one device; leases last 20 s at the most."""
    shared = Shared(tmp_path, 1, "device_lease_s = 20")
    yield shared
    shared.server.stop()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Shared]:
    """A server with two devices."""
    shared = Shared(tmp_path, 2)
    yield shared
    shared.server.stop()


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def leases_of(client: opferry.Client) -> list[bool]:
    """For each lease, whether it has a device."""
    return [bool(each.worker) for each in client.queue().device_leases]


def test_a_leased_device_runs_its_holders_calls_and_nobody_elses(two: Shared) -> None:
    with two.connect("a") as a, two.connect("b") as b:
        with a.lease_device(60) as lease:
            ran = {a.apply_rotary_pos_emb_grad(**tnd(cos=0)).execution.worker for _ in range(6)}
            assert ran == {lease.worker}
            others = {b.apply_rotary_pos_emb_grad(**tnd(cos=0)).execution.worker for _ in range(6)}
            assert others == {"worker-0", "worker-1"} - {lease.worker}
            assert lease.token not in repr(lease)
            with two.connect("a", device_lease="") as another:
                ran = {
                    another.apply_rotary_pos_emb_grad(**tnd(cos=0)).execution.worker
                    for _ in range(6)
                }
                assert lease.worker not in ran
            with two.connect("a", device_lease=lease.token) as told:
                result = told.apply_rotary_pos_emb_grad(**tnd(4000, cos=0))
                assert result.execution.worker == lease.worker
        assert leases_of(a) == []
        with ThreadPoolExecutor() as pool:
            both = [pool.submit(b.apply_rotary_pos_emb_grad, **tnd(cos=1.0)) for _ in range(2)]
            assert {each.result().execution.worker for each in both} == {"worker-0", "worker-1"}


@pytest.fixture
def generous(tmp_path: Path) -> Iterator[Shared]:
    """A server with two devices, both of which one tenant may lease."""
    shared = Shared(tmp_path, 2, "[tenants.a]", "device_leases = 2")
    yield shared
    shared.server.stop()


def test_leases_of_one_client_may_end_in_any_order(generous: Shared) -> None:
    """Calls go to the device of the latest that is left; with none of them, to any."""
    with generous.connect("a", device_lease="") as a, ExitStack() as later:

        def worker() -> str:
            return a.apply_rotary_pos_emb_grad(**tnd(cos=0)).execution.worker

        with a.lease_device(60) as first:
            second = later.enter_context(a.lease_device(60))
            assert worker() == second.worker != first.worker
        assert worker() == second.worker
        later.close()
        assert worker() in (first.worker, second.worker)


def test_a_lease_waits_for_what_runs_and_others_wait_for_it(one: Shared) -> None:
    """The run ends in peace; the next one begins when the lease has ended."""
    ended: list[str] = []
    with one.connect("a") as a, one.connect("b") as b:

        def call(name: str, seconds: float) -> None:
            arguments = tnd(cos=seconds)
            assert_same_bits(b.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
            ended.append(name)

        first = in_thread(lambda: call("before", 1.0))
        assert eventually(lambda: [each.state for each in b.queue().requests] == ["running"])
        with a.lease_device(15):
            first.join(10)
            assert ended == ["before"]
            second = in_thread(lambda: call("after", 0))
            a.apply_rotary_pos_emb_grad(**tnd(cos=0.3))
            assert ended == ["before"]
            waiting = [each.state for each in b.queue().requests]
            assert waiting == ["waiting for a device"]
        second.join(10)
        assert ended == ["before", "after"]


def test_a_lease_ends_after_its_time(one: Shared) -> None:
    """Calls that name it are refused, those that wait are sent away, others are served."""
    with one.connect("a") as a, one.connect("b") as b, a.lease_device(1.0) as lease:
        running = in_thread(lambda: a.apply_rotary_pos_emb_grad(**tnd(cos=2.0)))
        assert eventually(lambda: len(a.queue().requests) == 1)
        refused: list[errors.OpFerryError] = []

        def call() -> None:
            try:
                a.apply_rotary_pos_emb_grad(**tnd(cos=0))
            except errors.OpFerryError as error:
                refused.append(error)

        waiting = in_thread(call)
        assert eventually(lambda: bool(refused), 10)
        assert refused[0].reason == "DEVICE_LEASE_EXPIRED"
        running.join(10)
        waiting.join(10)
        with pytest.raises(errors.RequestError) as late:
            a.apply_rotary_pos_emb_grad(**tnd(cos=0))
        assert late.value.reason == "DEVICE_LEASE_EXPIRED"
        assert lease.token not in str(late.value)
        b.apply_rotary_pos_emb_grad(**tnd(cos=0))


@pytest.mark.full
def test_a_token_is_its_tenants_alone(two: Shared) -> None:
    with (
        two.connect("a") as a,
        a.lease_device(30) as lease,
        two.connect("b", device_lease=lease.token) as thief,
        pytest.raises(errors.RequestError) as refused,
    ):
        thief.apply_rotary_pos_emb_grad(**tnd(cos=0))
    assert refused.value.reason == "DEVICE_LEASE_EXPIRED"


HOLDER = """
import sys, time, opferry
client = opferry.connect(sys.argv[1], token=sys.argv[2])
with client.lease_device(1000):
    print("leased", flush=True)
    time.sleep(1000)
"""


@pytest.mark.full
def test_a_lease_ends_with_the_death_of_its_holder(two: Shared) -> None:
    """Killed without a word, its device serves the next who asks."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, two.server.address, two.tokens["a"]],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "leased\n"
    with two.connect("a") as a:
        assert leases_of(a) == [True]
        with pytest.raises(errors.ServerBusyError, match="1 leases"), a.lease_device(1):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        assert eventually(lambda: leases_of(a) == [])
        with a.lease_device(1):
            assert leases_of(a) == [True]


@pytest.mark.full
def test_leases_are_granted_in_the_order_in_which_they_were_asked_for(one: Shared) -> None:
    order: list[str] = []
    places: list[int] = []
    with one.connect("a") as a, one.connect("b") as b:

        def ask() -> None:
            with b.lease_device(5, on_wait=places.append):
                order.append("b")

        with a.lease_device(5):
            order.append("a")
            waiting = in_thread(ask)
            assert eventually(lambda: leases_of(a) == [True, False])
            assert order == ["a"]
        waiting.join(10)
    assert order == ["a", "b"]
    assert places
    assert set(places) == {0}


@pytest.mark.parametrize(
    ("duration_s", "kind", "named"),
    [(21, "", "duration_ms"), (0, "", "duration_ms"), (5, "950PR", "device_kind")],
)
def test_what_cannot_be_leased_is_refused_by_its_name(
    one: Shared, duration_s: float, kind: str, named: str
) -> None:
    with (
        one.connect("a") as a,
        pytest.raises(errors.RequestError, match=named) as refused,
        a.lease_device(duration_s, kind),
    ):
        pass
    assert refused.value.argument == named
    assert refused.value.request_id


@pytest.mark.full
def test_the_asynchronous_client_leases_too(one: Shared) -> None:
    async def scenario() -> None:
        async with opferry.aio.connect(
            one.server.address, token=one.tokens["a"], retry=ONCE
        ) as client:
            async with client.lease_device(10) as lease:
                result = await client.apply_rotary_pos_emb_grad(**tnd(cos=0))
                assert result.execution.worker == lease.worker
            while (await client.queue()).device_leases:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


COMMAND = """
import opferry
from tests.support.calls import tnd
with opferry.connect() as client:
    print(client.apply_rotary_pos_emb_grad(**tnd(cos=0)).execution.worker)
    raise SystemExit(7)
"""


@pytest.mark.full
def test_a_command_runs_under_a_lease(two: Shared) -> None:
    """Of two servers, one gone: the other's device is leased; the status is the command's."""
    gone = f"127.0.0.1:{servers.free_port()}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "opferry.cli", "lease", "--for", "30s"),
            *("--target", f"{gone},{two.server.address}"),
            *("--", sys.executable, "-c", COMMAND),
        ],
        env={**os.environ, "PYTHONPATH": servers.PYTHONPATH, "OPFERRY_TOKEN": two.tokens["a"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    worker = done.stdout.strip()
    assert f"leased cpu:{worker[-1]} ({worker} of {two.server.address}) for 30 s" in done.stderr
    with two.connect("a") as a:
        assert eventually(lambda: leases_of(a) == [])


@pytest.mark.full
def test_a_lease_for_another_terminal_ends_by_ctrl_c(two: Shared) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "opferry.cli", "lease", "--target", two.server.address],
        env={**os.environ, "OPFERRY_TOKEN": two.tokens["a"], "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = dict(
        process.stdout.readline().removeprefix("export ").strip().split("=", 1) for _ in range(2)
    )
    assert told["OPFERRY_TARGET"] == two.server.address
    with two.connect("a", device_lease=told["OPFERRY_DEVICE_LEASE"]) as a:
        a.apply_rotary_pos_emb_grad(**tnd(cos=0))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 3
        assert "Traceback" not in out + err
        assert eventually(lambda: leases_of(a) == [])


@pytest.mark.full
def test_a_lease_that_is_not_waited_for_leaves_the_line(one: Shared) -> None:
    """A client that closes while it waits is forgotten, and what it kept off goes on."""
    with one.connect("a") as a, one.connect("b") as b:
        in_thread(lambda: a.apply_rotary_pos_emb_grad(**tnd(cos=1.0)))
        assert eventually(lambda: [each.state for each in a.queue().requests] == ["running"])
        impatient = one.connect("b")

        def ask() -> None:
            with pytest.raises(errors.OpFerryError), impatient.lease_device(5):
                pass

        asking = in_thread(ask)
        assert eventually(lambda: leases_of(a) == [False])
        impatient.close()
        asking.join(10)
        assert eventually(lambda: leases_of(a) == [])
        started_s = time.monotonic()
        b.apply_rotary_pos_emb_grad(**tnd(cos=0))
        assert time.monotonic() - started_s < 10


def test_who_asks_several_servers_is_told_that_a_lease_is_one_servers(two: Shared) -> None:
    """By the SDK before anything is sent; by a server that is given another's token."""
    both = f"{two.server.address},127.0.0.1:{servers.free_port()}"
    with (
        opferry.connect(both, token=two.tokens["a"], retry=ONCE) as client,
        pytest.raises(errors.RequestError, match="several servers") as refused,
        client.lease_device(5),
    ):
        pass
    assert refused.value.argument == "target"
    with (
        two.connect("a", device_lease="host1:abc") as elsewhere,
        pytest.raises(errors.RequestError, match="is server host1's, and this is") as other,
    ):
        elsewhere.apply_rotary_pos_emb_grad(**tnd(cos=0))
    assert other.value.reason == "DEVICE_LEASE_EXPIRED"


def test_a_lease_is_ended_by_its_id(two: Shared) -> None:
    """By its tenant, not by another; its holder hears it at its next call."""
    with two.connect("a") as a, two.connect("b") as b, a.lease_device(60):
        (lease,) = a.queue().device_leases
        assert b.queue().device_leases[0].request_id == ""
        with pytest.raises(errors.RequestError):
            b.cancel(lease.request_id)
        a.cancel(lease.request_id)
        assert eventually(lambda: leases_of(b) == [])
        with pytest.raises(errors.RequestError) as late:
            a.apply_rotary_pos_emb_grad(**tnd(cos=0))
        assert late.value.reason == "DEVICE_LEASE_EXPIRED"
