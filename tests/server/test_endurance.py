"""A server that has seen bad times is whole again afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import opferry
from opferry import errors
from opferry.core.tensors import TensorSpec
from opferry.operators.call import HOST_STEP_BYTES
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.processes import descriptors, eventually, family


@contextlib.contextmanager
def started_after(statements: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server in a process that runs *statements* first; yield it and its address."""
    address = f"127.0.0.1:{servers.free_port()}"
    program = (
        f"import sys; {statements};"
        "sys.argv[:] = ['opferry-server', '--address', sys.argv[1]];"
        "from opferry_server.__main__ import main; main()"
    )
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", program, address], stderr=log) as server,
    ):
        yield server, address


def worker_pids(front: int) -> list[int]:
    return [pid for pid in family(front) if pid != front]


@pytest.mark.full
def test_workers_that_die_while_they_start_are_never_doubled() -> None:
    """Killed again and again, ready or not: in the end there is one process for each worker."""
    with (
        servers.embedded(workers=2) as server,
        opferry.connect(server.address) as client,
    ):
        before = len(descriptors(server.pid))
        for _ in range(12):
            for pid in worker_pids(server.pid):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.15)
        assert eventually(lambda: all(worker.ready for worker in client.server_info().workers), 30)
        assert eventually(lambda: len(worker_pids(server.pid)) == 2)
        assert eventually(lambda: len(descriptors(server.pid)) <= before + 1)
        arguments = tnd()
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        front = psutil.Process(server.pid)
        used = sum(front.cpu_times()[:2])
        time.sleep(1.0)
        assert sum(front.cpu_times()[:2]) - used < 0.5


def test_without_uvloop_the_server_is_the_same(tmp_path: Path) -> None:
    """Where it is not installed Python's own event loop does, for any call and the end."""
    with (
        started_after("sys.modules['uvloop'] = None", tmp_path) as (server, address),
        opferry.connect(address, shared_memory=False) as client,
    ):
        for tokens in (2, 20_000):
            arguments = tnd(tokens)
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        server.terminate()
        assert server.wait(30) == 0


def test_a_want_of_descriptors_passes(tmp_path: Path) -> None:
    """While connections hold every descriptor calls may be refused; afterwards all is as before."""
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"
    with (
        started_after(few, tmp_path) as (server, address),
        opferry.connect(address, retry=opferry.RetryConfig(attempts=1)) as client,
    ):
        arguments = tnd(3000)
        expected = reference(arguments)

        def served() -> bool:
            try:
                assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments, timeout=3), expected)
            except errors.OpFerryError:
                return False
            return True

        assert eventually(served, 30)
        host, port = address.split(":")
        idle = []
        for _ in range(130):
            # the last ones may be refused
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection((host, int(port))))
        assert len(idle) > 100
        for _ in range(5):
            served()
        for connection in idle:
            connection.close()
        assert eventually(served, 30)
        assert all(served() for _ in range(5))
        server.terminate()
        assert server.wait(30) == 0


def test_what_fits_only_without_rounding_is_refused_and_blocks_nobody() -> None:
    """The limit counts what a request takes of the memory, not what its tensors add up to."""
    limits = {"memory_bytes": 10 * HOST_STEP_BYTES + 100}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        rows = (10 * HOST_STEP_BYTES) // (6 * 2 * 4) + 1
        one = np.ones((1, 1, 2), np.float32)
        gradient = np.broadcast_to(one, (rows, 1, 2))
        with pytest.raises(errors.TooLargeError, match="the limit is"):
            client.apply_rotary_pos_emb_grad(gradient, gradient, gradient, gradient, layout=4)
        spec = TensorSpec(opferry.DType.FLOAT32, (rows, 1, 2))
        with pytest.raises(errors.TooLargeError):
            client.plan_apply_rotary_pos_emb_grad(spec, spec, spec, spec, layout=4)
        arguments = tnd()
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))


def test_a_reader_of_the_log_that_goes_away_costs_no_request() -> None:
    """Stderr is a pipe that nobody reads any more."""
    address = f"127.0.0.1:{servers.free_port()}"
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "opferry_server", "--address", address], stderr=writer
    ) as server:
        os.close(writer)
        with opferry.connect(address) as client:
            arguments = tnd()
            expected = reference(arguments)
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), expected)
            os.close(reader)
            for _ in range(20):
                assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), expected)
        server.terminate()
        assert server.wait(30) == 0


def test_new_limits_of_a_restarted_server_are_found_out(tmp_path: Path) -> None:
    """A client that knew smaller limits asks again before it refuses."""
    first = servers.TcpServer(tmp_path, limits={"tensor_bytes": 1000})
    with opferry.connect(first.address) as client:
        arguments = tnd(200)
        with pytest.raises(errors.TooLargeError):
            client.apply_rotary_pos_emb_grad(**arguments)
        first.stop()
        with servers.tcp(tmp_path, address=first.address):
            assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))


def test_an_embedded_server_of_a_process_that_forked_ends() -> None:
    """A forked child holds the lifeline too: stopping closes it for both."""
    script = (
        "import os, time; from opferry.embedded import EmbeddedServer\n"
        "server = EmbeddedServer()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(60); os._exit(0)\n"
        "server.stop()\n"
        "print(server.process.returncode)\n"
        "os.kill(child, 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "0\n", done.stderr


def test_a_stalled_upload_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """It is told SHUTTING_DOWN, and the server ends at once."""
    with servers.tcp(tmp_path) as server, ThreadPoolExecutor() as pool:
        never = threading.Event()
        frames = raw.slowly([raw.header_frame(), raw.body()[0]], never)
        upload = pool.submit(raw.stream, server.address, frames, 60)
        time.sleep(0.5)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10
        with pytest.raises(errors.ServerBusyError) as caught:
            upload.result()
        assert caught.value.reason == "SHUTTING_DOWN"
        never.set()
