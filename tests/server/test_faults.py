"""Workers, fronts and clients that die: who notices, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import opferry
from opferry import errors
from tests.support import raw, servers
from tests.support.backends import LONG_SLEEP_S
from tests.support.calls import HEAVY, Subject, assert_same_bits, reference
from tests.support.processes import (
    MIB,
    Threads,
    arena_count,
    descriptors,
    eventually,
    family,
    rss_anon_bytes,
    threads_return,
)

ONCE = opferry.RetryConfig(attempts=1)


def worker_pids(front: int) -> list[int]:
    return [pid for pid in family(front) if pid != front]


def plain_descriptors(pid: int) -> int:
    """Count the descriptors that are no arena's: those are pooled."""
    return sum("opferry-arena" not in target for target in descriptors(pid))


@pytest.mark.parametrize("subject", HEAVY)
def test_a_killed_worker_fails_only_its_own_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    """Kill -9 of a worker in mid-request, with 8 other clients at work: one DEVICE_FAULT."""
    sleeper = tmp_path / "sleeper"
    monkeypatch.setenv("OPFERRY_TEST_SLEEPER", str(sleeper))
    with (
        servers.embedded("SleepBackend", workers=2) as server,
        ThreadPoolExecutor(9) as pool,
        opferry.connect(server.address) as watcher,
    ):
        subject.call(watcher, **subject.tnd(cos=0))
        before = plain_descriptors(server.pid)
        stop = threading.Event()
        arguments = subject.tnd(2000, cos=0.01)
        expected = reference(arguments)

        def others() -> int:
            count = 0
            with opferry.connect(server.address) as client:
                while not stop.is_set():
                    assert_same_bits(subject.call(client, **arguments), expected)
                    count += 1
            return count

        busy = [pool.submit(others) for _ in range(8)]
        victim = pool.submit(subject.call, watcher, **subject.tnd(cos=LONG_SLEEP_S))
        assert eventually(lambda: sleeper.exists() and sleeper.read_text().endswith("\n"))
        os.kill(int(sleeper.read_text()), signal.SIGKILL)
        with pytest.raises(errors.DeviceFaultError, match="SIGKILL") as caught:
            victim.result()
        assert caught.value.reason == "DEVICE_FAULT"
        assert not caught.value.may_retry
        assert caught.value.request_id
        assert eventually(
            lambda: all(worker.ready for worker in watcher.server_info().workers), 5
        ), "whole again within 5 seconds"
        time.sleep(0.5)
        stop.set()
        assert all(count.result() > 0 for count in busy)
        assert len(worker_pids(server.pid)) == 2
        assert eventually(lambda: plain_descriptors(server.pid) <= before), (
            plain_descriptors(server.pid),
            before,
        )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
@pytest.mark.parametrize("subject", HEAVY)
def test_the_signal_that_ended_a_worker_is_named(number: signal.Signals, subject: Subject) -> None:
    """A crash in the operator is a DEVICE_FAULT with the signal's name; the worker comes back."""
    with (
        servers.embedded("CrashBackend") as server,
        opferry.connect(server.address) as client,
    ):
        with pytest.raises(errors.DeviceFaultError, match=number.name):
            subject.call(client, **subject.tnd(cos=-float(number)))
        arguments = subject.tnd(cos=1)
        assert_same_bits(subject.call(client, **arguments), reference(arguments))
        worker = client.server_info().workers[0]
        assert worker.ready
        assert worker.restart_count == 1


@pytest.mark.parametrize("tokens", [2, 4000])
@pytest.mark.parametrize("subject", HEAVY)
def test_a_request_that_broke_two_devices_is_refused(tokens: int, subject: Subject) -> None:
    """The same bytes never reach a third device; others are served all the while."""
    with (
        servers.embedded("CrashBackend", workers=4) as server,
        opferry.connect(server.address) as client,
    ):
        poison = subject.tnd(tokens, cos=-float(signal.SIGSEGV))
        outcomes = []
        while len(outcomes) < 8:
            with pytest.raises(errors.DeviceFaultError) as caught:
                subject.call(client, **poison)
            outcomes.append(caught.value.reason)
            arguments = subject.tnd(tokens, cos=1, seed=len(outcomes))
            assert_same_bits(subject.call(client, **arguments), reference(arguments))
        refused = outcomes.index("REQUEST_POISONED")
        assert refused >= 2
        assert set(outcomes[:refused]) == {"DEVICE_FAULT"}
        assert set(outcomes[refused:]) == {"REQUEST_POISONED"}

        def touched() -> int:
            return sum(worker.restart_count > 0 for worker in client.server_info().workers)

        assert eventually(lambda: touched() == 2)
        other = subject.tnd(tokens, cos=-float(signal.SIGSEGV), seed=9)
        with pytest.raises(errors.DeviceFaultError) as caught:
            subject.call(client, **other)
        assert caught.value.reason == "DEVICE_FAULT"


@pytest.mark.parametrize("subject", HEAVY)
def test_an_idle_worker_that_dies_is_replaced_unnoticed(subject: Subject) -> None:
    """Kill -9 of a worker between requests fails nothing."""
    with servers.embedded() as server, opferry.connect(server.address) as client:
        arguments = subject.tnd()
        for _ in range(3):
            os.kill(worker_pids(server.pid)[0], signal.SIGKILL)
            assert_same_bits(subject.call(client, **arguments), reference(arguments))


@pytest.mark.parametrize("subject", HEAVY)
def test_nothing_is_left_behind_by_a_killed_front(tmp_path: Path, subject: Subject) -> None:
    """Kill -9 of the front: its workers end, and with them every arena."""
    with (
        servers.tcp(tmp_path, "SleepBackend", workers=2) as server,
        opferry.connect(server.address, retry=ONCE) as client,
        ThreadPoolExecutor() as pool,
    ):
        call = pool.submit(subject.call, client, **subject.tnd(cos=30))
        assert eventually(
            lambda: any(worker.running_count for worker in client.server_info().workers)
        )
        pids = worker_pids(server.pid)
        assert len(pids) == 2
        server.process.kill()
        with pytest.raises(errors.TransportError):
            call.result()
        server.process.wait()
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_an_embedded_server_ends_with_the_process_that_started_it() -> None:
    """Kill -9 of the process that runs the server: front and workers end."""
    script = (
        "import time; from opferry.embedded import EmbeddedServer; s = EmbeddedServer();"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        front = int(parent.stdout.readline())
        pids = family(front)
        parent.kill()
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30)


def _cut_uploads(address: str, count: int) -> None:
    """Begin uploads on plain connections and close the sockets in mid-body, without a goodbye."""
    for index in range(count):
        relay = _Relay(address)
        frames = [raw.header_frame(raw.small_specs(4000)), raw.chunk(0, 0, bytes(64_000))]
        waiting = threading.Event()
        call = threading.Thread(target=_try_stream, args=(relay.address, frames, waiting))
        call.start()
        assert relay.passed.wait(10), index
        relay.cut()
        waiting.set()
        call.join()


def _try_stream(address: str, frames: list[bytes], waiting: threading.Event) -> None:
    try:
        raw.stream(address, raw.slowly(frames, waiting))
    except errors.TransportError:
        return
    raise AssertionError("a cut upload had a result")


class _Relay:
    """A TCP relay to the server whose connections can be cut by a reset."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:  # a client that tries again
                    near.close()
                    return
                far = socket.create_connection(self._target)
                self._pairs.append((near, far))
            for source, sink, counted in ((near, far, True), (far, near, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, counted), daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        total = 0
        try:
            while data := source.recv(65536):
                sink.sendall(data)
                total += len(data)
                if counted and total > 32_000:
                    self.passed.set()
        except OSError:
            pass

    def cut(self) -> None:
        """Close all connections in the middle of whatever they carry."""
        with self._lock:
            self._is_cut = True
            for pair in self._pairs:
                for end in pair:
                    with contextlib.suppress(OSError):  # its peer may have been quicker
                        end.shutdown(socket.SHUT_RDWR)
                    end.close()
        self._listener.close()


KILLED_CLIENT = """
import sys, threading
from tests.support import raw
def frames():
    yield raw.header_frame(raw.small_specs(4000))
    yield raw.chunk(0, 0, bytes(64_000))
    print("sent", flush=True)
    threading.Event().wait()
raw.stream(sys.argv[1], frames(), timeout=60)
"""


def _killed_clients(address: str, count: int) -> None:
    """Kill client processes (-9) in mid-upload."""
    for _ in range(count):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED_CLIENT, address],
            stdout=subprocess.PIPE,
            cwd=servers.ROOT,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"sent\n"
            client.kill()


@pytest.mark.full
@pytest.mark.parametrize("subject", HEAVY)
def test_uploads_cut_in_the_middle_leave_nothing(subject: Subject) -> None:
    """200 cut uploads, 20 by kill -9 and 180 by a reset: all is as before, and calls succeed."""
    limits = {"stream_idle_ms": 2000, "idle_memory_bytes": 0}
    with servers.embedded(limits=limits) as server, opferry.connect(server.address) as client:
        _cut_uploads(server.address, 5)
        subject.call(client, **subject.tnd())
        assert eventually(lambda: arena_count(server.pid) == 0)
        threads, held = Threads.of(server.pid), descriptors(server.pid)
        memory = rss_anon_bytes(server.pid)
        _killed_clients(server.address, 20)
        _cut_uploads(server.address, 180)
        assert eventually(lambda: arena_count(server.pid) == 0)
        assert eventually(lambda: len(descriptors(server.pid)) <= len(held)), (
            descriptors(server.pid),
            held,
        )
        assert threads_return(server.pid, threads), (Threads.of(server.pid), threads)
        assert rss_anon_bytes(server.pid) - memory < 8 * MIB
        arguments = subject.tnd()
        assert_same_bits(subject.call(client, **arguments), reference(arguments))
