"""What becomes of leased memory: calls given up, limits, idle times, deaths of whoever has it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import opferry
from opferry import _lease_connection, _leases, errors
from tests.support import servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.leasing import NOTHING_IDLE, large, leased_bytes, open_arenas
from tests.support.processes import eventually

pytestmark = pytest.mark.full  # processes that start and die, half a minute

Result = opferry.ApplyRotaryPosEmbGradResult


@pytest.mark.parametrize("kind", ["cancelled", "timed out", "timed out, not asynchronous"])
def test_a_call_that_is_given_up_leaves_its_memory_to_the_run(
    server: servers.EmbeddedServer, kind: str
) -> None:
    """Its run goes on and writes there: nothing else may lie there, and nothing stays of it."""
    slow, fast = large(1, cos=1.0), large(2)
    expected = reference(fast)

    async def scenario() -> Result:
        async with opferry.aio.connect(server.address) as client:
            await client.apply_rotary_pos_emb_grad(**large(0))
            if kind == "cancelled":
                running = asyncio.ensure_future(client.apply_rotary_pos_emb_grad(**slow))
                while (await client.server_info()).workers[0].running_count == 0:
                    await asyncio.sleep(0.01)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                with pytest.raises(errors.DeadlineError):
                    await client.apply_rotary_pos_emb_grad(**slow, timeout=0.5)
            return await client.apply_rotary_pos_emb_grad(**fast)

    if kind.endswith("not asynchronous"):
        with opferry.connect(server.address) as client:
            client.apply_rotary_pos_emb_grad(**large(0))
            with pytest.raises(errors.DeadlineError):
                client.apply_rotary_pos_emb_grad(**slow, timeout=0.5)
            result = client.apply_rotary_pos_emb_grad(**fast)
    else:
        result = asyncio.run(scenario())
    assert result.execution.shared_memory
    assert_same_bits(result, expected)
    del result
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_task_cancelled_while_its_inputs_are_written_keeps_nothing(
    server: servers.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes them goes on; the memory is given back all the same."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    attempt = _leases.Leases.attempt

    def slowly(self: Any, *arguments: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        made = attempt(self, *arguments, **named)
        ended.set()
        return made

    async def scenario() -> None:
        async with opferry.aio.connect(server.address) as client:
            await client.apply_rotary_pos_emb_grad(**large(0))
            monkeypatch.setattr(_leases.Leases, "attempt", slowly)
            task = asyncio.ensure_future(client.apply_rotary_pos_emb_grad(**large(1)))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            connection = client._leases._connection
            assert connection is not None
            while not ended.is_set() or connection._lent_count:
                await asyncio.sleep(0.01)
            result = await client.apply_rotary_pos_emb_grad(**large(2))
            assert_same_bits(result, reference(large(2)))
            assert open_arenas(server.pid) == 1

    asyncio.run(asyncio.wait_for(scenario(), 60))
    gc.collect()  # the cancelled task's traceback holds the scenario's frame, which holds the task
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_refused_request_gives_its_memory_back(client: opferry.Client, server: Any) -> None:
    """What the server itself refuses has not run: the memory does for the next call."""
    client.apply_rotary_pos_emb_grad(**large(0))
    for _ in range(3):
        with pytest.raises(errors.NotSupportedError):
            client.apply_rotary_pos_emb_grad(**large(1), operator_package="nobody's")
        assert_same_bits(client.apply_rotary_pos_emb_grad(**large(2)), reference(large(2)))
        assert open_arenas(server.pid) == 1


def test_memory_of_a_run_that_somebody_ended_is_not_used_again(
    client: opferry.Client, server: Any
) -> None:
    """The run goes on, for nobody, and writes there yet."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.apply_rotary_pos_emb_grad, **large(cos=3.0))
        assert eventually(lambda: [each.state for each in client.queue().requests] == ["running"])
        (request,) = client.queue().requests
        assert client.cancel(request.request_id)
        with pytest.raises(errors.CallCancelledError):
            running.result(10)
    result = client.apply_rotary_pos_emb_grad(**large(1))
    assert result.execution.shared_memory
    assert open_arenas(server.pid) in (1, 2)  # the other may have ended by now
    assert_same_bits(result, reference(large(1)))
    assert eventually(lambda: open_arenas(server.pid) == 1)


def test_a_client_over_its_limit_goes_on_in_chunks() -> None:
    """What does not fit into its leases comes over the network, and the others stay as they are."""
    limits = {"client_leased_bytes": 2 * leased_bytes(large()) - 1}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        results = [client.apply_rotary_pos_emb_grad(**large(seed)) for seed in range(5)]
        shared = [result.execution.shared_memory for result in results]
        assert shared == [True, False, False, False, False]
        for seed, result in enumerate(results):
            assert_same_bits(result, reference(large(seed)))
        results.clear()
        del result
        assert client.apply_rotary_pos_emb_grad(**large(6)).execution.shared_memory


def test_idle_memory_gives_way_to_a_call_that_needs_it() -> None:
    """A client at its limit releases what it keeps before it is refused."""
    small, twice = tnd(1500, 3, 2, 32, cos=0), tnd(3500, 3, 2, 32, cos=0)
    limits = {"client_leased_bytes": leased_bytes(small) + leased_bytes(twice) - 1}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        assert client.apply_rotary_pos_emb_grad(**small).execution.shared_memory
        result = client.apply_rotary_pos_emb_grad(**twice)
        assert result.execution.shared_memory
        assert_same_bits(result, reference(twice))


def test_idle_memory_is_trimmed(
    server: servers.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no call has used for a while goes back, and so does what is too much."""
    monkeypatch.setattr(_lease_connection, "IDLE_S", 0.1)
    with opferry.connect(server.address) as client:
        client.apply_rotary_pos_emb_grad(**large())
        assert eventually(lambda: open_arenas(server.pid) == 0)
        monkeypatch.setattr(_lease_connection, "IDLE_S", 1e6)
        monkeypatch.setattr(_lease_connection, "IDLE_BYTES", 0)
        result = client.apply_rotary_pos_emb_grad(**large())
        assert open_arenas(server.pid) == 1
        del result
        assert eventually(lambda: open_arenas(server.pid) == 0)


def test_idle_memory_is_given_back_to_who_waits_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plain gRPC client notices nothing of it but that it waits for a moment."""
    monkeypatch.setattr(_lease_connection, "IDLE_S", 1e6)
    arguments = large()
    big = tnd(5000, 3, 2, 32, cos=0)
    limits = {"memory_bytes": 6 * leased_bytes(arguments)}
    assert 6 * leased_bytes(arguments) > leased_bytes(big) > 3 * leased_bytes(arguments)
    with (
        servers.embedded(limits=limits) as server,
        opferry.connect(server.address) as client,
        opferry.connect(server.address, shared_memory=False) as plain,
        ThreadPoolExecutor(1) as pool,
    ):
        results = [client.apply_rotary_pos_emb_grad(**arguments) for _ in range(3)]
        assert all(result.execution.shared_memory for result in results)
        assert_same_bits(plain.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        calling = pool.submit(plain.apply_rotary_pos_emb_grad, **big)
        results.clear()
        assert_same_bits(calling.result(30), reference(big))


def test_a_worker_that_dies_under_a_leased_request() -> None:
    """DEVICE_FAULT with the signal, as ever; the memory and the next worker serve on."""
    limits = NOTHING_IDLE
    with (
        servers.embedded("CrashBackend", limits=limits) as server,
        opferry.connect(server.address) as client,
    ):
        good = large(1, cos=1.0)
        for _ in range(2):
            with pytest.raises(errors.DeviceFaultError, match="SIGSEGV"):
                client.apply_rotary_pos_emb_grad(**large(cos=-float(signal.SIGSEGV)))
            result = client.apply_rotary_pos_emb_grad(**good)
            assert result.execution.shared_memory
            assert_same_bits(result, reference(good))
            del result
        assert open_arenas(server.pid) == 1


def test_a_request_that_broke_two_devices_is_known_by_its_leased_content() -> None:
    """The same bytes are refused, by chunks and by shared memory alike."""
    with servers.embedded("CrashBackend", workers=3) as server:
        poison = large(cos=-float(signal.SIGSEGV))
        outcomes = []
        while "REQUEST_POISONED" not in outcomes:
            shared = len(outcomes) % 2 == 0
            with opferry.connect(server.address, shared_memory=shared) as client:
                with pytest.raises(errors.DeviceFaultError) as caught:
                    client.apply_rotary_pos_emb_grad(**poison)
                outcomes.append(caught.value.reason)
            assert len(outcomes) < 8
        assert outcomes.count("DEVICE_FAULT") >= 2


def test_a_client_killed_with_leases_leaves_none(
    server: servers.EmbeddedServer,
) -> None:
    """SIGKILL in the middle of a run, with results in view: all memory comes back."""
    assert eventually(lambda: open_arenas(server.pid) == 0)
    script = f"""
        import sys, opferry
        from tests.support.calls import tnd
        client = opferry.connect({server.address!r})
        kept = [client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=0)) for _ in range(3)]
        assert all(result.execution.shared_memory for result in kept)
        print("ready", flush=True)
        client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=2.0))
    """
    environment = {**os.environ, "PYTHONPATH": servers.PYTHONPATH}
    with (
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            env=environment,
        ) as process,
        opferry.connect(server.address) as watcher,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert eventually(lambda: watcher.server_info().workers[0].running_count == 1)
        assert open_arenas(server.pid) == 4
        process.kill()
        process.wait()
        # the run goes on, and keeps its memory alone
        assert eventually(lambda: open_arenas(server.pid) == 1, 1.5)
        assert eventually(lambda: open_arenas(server.pid) == 0)


def run_script(script: str, address: str) -> str:
    """Run a program against a server; returns what it prints, and asserts that it says no more."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script), address],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": servers.PYTHONPATH},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_program_ends_with_results_in_view(server: servers.EmbeddedServer) -> None:
    """At the end of the interpreter nothing complains and nothing hangs."""
    script = """
        import sys, opferry
        from tests.support.calls import tnd
        client = opferry.connect(sys.argv[1])
        kept = client.apply_rotary_pos_emb_grad(**tnd(1500, 3, 2, 32, cos=0))
        cycle = [kept.grad_query[1:]]
        cycle.append(cycle)
        print(kept.execution.shared_memory)
    """
    assert run_script(script, server.address) == "True\n"
    assert eventually(lambda: open_arenas(server.pid) == 0)


def test_a_forked_child_leaves_its_parents_leases_alone(server: servers.EmbeddedServer) -> None:
    """What dies in the child was the parent's, and the end of the child ends nothing."""
    script = """
        import os, sys, opferry
        from tests.support.calls import assert_same_bits, reference, tnd
        first, second = (tnd(1500, 3, 2, 32, cos=0, seed=seed) for seed in (1, 2))
        client = opferry.connect(sys.argv[1])
        kept = client.apply_rotary_pos_emb_grad(**first)
        idle = client.apply_rotary_pos_emb_grad(**second)
        assert kept.execution.shared_memory
        child = os.fork()
        if child == 0:
            assert_same_bits(kept, reference(first))
            del kept, idle
            client._leases.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert_same_bits(kept, reference(first))
        again = client.apply_rotary_pos_emb_grad(**second)
        assert again.execution.shared_memory
        assert_same_bits(again, reference(second))
        assert_same_bits(kept, reference(first))
        print("right")
    """
    environment = {**os.environ, "PYTHONPATH": servers.PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), server.address],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_views_that_die_in_the_garbage_collector_at_any_moment(client: opferry.Client) -> None:
    """Cycles are collected inside of the connection's own code, too, and nothing blocks."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for seed in range(30):
            arguments = large(seed % 3)
            result = client.apply_rotary_pos_emb_grad(**arguments)
            cycle: list[Any] = [result]
            cycle.append(cycle)
            assert_same_bits(result, reference(arguments))
    finally:
        gc.set_threshold(*before)


def test_long_runs_do_not_hold_up_leases(server: servers.EmbeddedServer) -> None:
    """While one request sleeps, others lease, wait in the line and are served after it."""
    with opferry.connect(server.address) as client, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.apply_rotary_pos_emb_grad, **large(1, cos=1.0))
        assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        fast = client.apply_rotary_pos_emb_grad(**large(2))
        assert fast.execution.shared_memory
        assert_same_bits(fast, reference(large(2)))
        assert_same_bits(slow.result(), reference(large(1, cos=1.0)))
