"""Clients that leave or do nothing, and servers that stop: who is told, and what is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import opferry
from opferry import errors
from opferry.v1 import validation_pb2 as pb
from tests.support import raw, servers, validating
from tests.support.backends import LONG_SLEEP_S
from tests.support.calls import Subject, assert_same_bits, reference
from tests.support.processes import (
    Threads,
    arena_count,
    descriptors,
    eventually,
    family,
    threads_return,
)
from tests.support.validating import HEADER, Stream, case, chunk, error_of, opened

pytestmark = pytest.mark.full

ONCE = opferry.RetryConfig(attempts=1)
DUMPING = pb.ValidateHeader(standard="mixed", dump_outputs=True, dump_goldens=True)


def sleeping(case_id: int, seconds: float, subject: Subject) -> pb.ValidateCase:
    """Return a case on which a SleepBackend sleeps."""
    specs = raw.small_specs(subject=subject)
    inputs = [
        validating.recipe(spec, low=seconds, high=seconds)
        if spec.name == "cos"
        else validating.recipe(spec)
        for spec in specs
    ]
    return case(case_id, inputs, subject=subject)


def still_serves(address: str, subject: Subject) -> None:
    with opened(address) as stream:
        stream.send(case(subject=subject))
        assert all(output.passed for output in stream.verdict().outputs)


class Baseline:
    """What a server holds when nothing is under way."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        assert eventually(lambda: arena_count(pid) == 0)
        self._threads = Threads.of(pid)
        self._descriptors = len(descriptors(pid))

    def returns(self) -> bool:
        """Return whether the server comes back to it."""
        return eventually(
            lambda: (
                arena_count(self._pid) == 0 and len(descriptors(self._pid)) <= self._descriptors
            ),
            20,
        ) and threads_return(self._pid, self._threads)


KILLED = """
import sys
from tests.support import validating
from tests.support.calls import SUBJECTS
subject = SUBJECTS[sys.argv[2]]
stream = validating.Stream(sys.argv[1])
stream.send(validating.HEADER)
stream.welcome()
stream.send(
    validating.sent_case(1, 2000, named=False, subject=subject),
    validating.case(2, tokens=2000, subject=subject),
)
frame = stream.read()
while not frame.HasField("needed"):
    frame = stream.read()
stream.send(validating.chunk(1, 0, 0, bytes(1000)))
print("sent", flush=True)
stream.read()
"""


def test_clients_that_go_away_leave_nothing(subject: Subject) -> None:
    """Cancelled while cases wait for data, run and are told, or killed: all is as before."""
    limits = {"idle_memory_bytes": 0, "stream_idle_ms": 60_000}
    with servers.embedded(limits=limits) as server:
        still_serves(server.address, subject)
        baseline = Baseline(server.pid)
        for number in range(30):
            with opened(server.address, DUMPING) as stream:
                stream.send(
                    validating.sent_case(1, 2000, named=number % 2 == 0, subject=subject),
                    *(case(other, tokens=2000, subject=subject) for other in range(2, 12)),
                )
                for _ in range(number % 10):
                    stream.read()
        for _ in range(3):
            with subprocess.Popen(
                [sys.executable, "-c", KILLED, server.address, subject.name],
                stdout=subprocess.PIPE,
                cwd=servers.ROOT,
            ) as client:
                assert client.stdout is not None
                assert client.stdout.readline() == b"sent\n"
                client.kill()
        assert baseline.returns(), (descriptors(server.pid), Threads.of(server.pid))
        still_serves(server.address, subject)


def test_a_client_that_leaves_while_its_case_runs_costs_no_worker(subject: Subject) -> None:
    """The run goes on to its end; its memory comes back then."""
    limits = {"idle_memory_bytes": 0}
    with servers.embedded("SleepBackend", limits=limits) as server:
        still_serves(server.address, subject)
        baseline = Baseline(server.pid)
        with opened(server.address) as stream, opferry.connect(server.address) as client:
            stream.send(sleeping(1, 1.0, subject))
            assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        assert baseline.returns()
        still_serves(server.address, subject)


def test_a_client_that_stops_reading_is_told_so(subject: Subject) -> None:
    """Its stream ends with STREAM_IDLE, its memory comes back, and others are served meanwhile."""
    limits = {"idle_memory_bytes": 0, "stream_idle_ms": 1500}
    with servers.embedded(limits=limits) as server:
        still_serves(server.address, subject)
        baseline = Baseline(server.pid)
        still = Stream(server.address)
        still.send(DUMPING)
        still.welcome()
        # about 60 MB come back: more than every window and buffer in between takes
        still.send(*(case(number, tokens=60_000, subject=subject) for number in range(1, 9)))
        assert eventually(lambda: arena_count(server.pid) > 0)
        still_serves(server.address, subject)
        assert eventually(lambda: arena_count(server.pid) == 0, 30)
        frames, caught = still.until_error()
        verdicts = [frame.verdict.case_id for frame in frames if frame.HasField("verdict")]
        assert isinstance(caught, errors.DeadlineError)
        assert caught.reason == "STREAM_IDLE"
        assert "read nothing" in caught.message
        assert len(set(verdicts)) == len(verdicts)
        still.close()
        assert baseline.returns()
        still_serves(server.address, subject)


def test_data_that_do_not_come_cost_only_their_case(subject: Subject) -> None:
    """STREAM_IDLE in its verdict; what comes too late is dropped, and the others go on."""
    with (
        servers.embedded(limits={"stream_idle_ms": 700}) as server,
        opened(server.address) as stream,
    ):
        late = validating.sent_case(1, named=False, subject=subject)
        stream.send(late)
        needed = stream.needed()
        stream.send(chunk(1, 0, 0, bytes(8)), case(2, subject=subject))
        assert stream.verdict().case_id == 2
        verdict = stream.verdict()
        assert verdict.case_id == 1
        assert error_of(verdict).reason == "STREAM_IDLE"
        stream.send_zeros(needed, late)
        stream.send(case(3, subject=subject))
        verdict = stream.verdict()
        assert verdict.case_id == 3
        assert all(output.passed for output in verdict.outputs)


def test_a_stream_on_which_nothing_is_under_way_is_ended() -> None:
    """STREAM_IDLE, whether or not it had a header."""
    with servers.embedded(limits={"stream_idle_ms": 300}) as server:
        for frames in ([], [HEADER]):
            stream = Stream(server.address)
            stream.send(*frames)
            _, caught = stream.until_error()
            assert caught.reason == "STREAM_IDLE"
            stream.close()


def test_cases_that_run_longer_than_a_stream_may_be_idle_are_waited_for(subject: Subject) -> None:
    """A client that waits for its verdict is not idle."""
    limits = {"stream_idle_ms": 1500}
    with (
        servers.embedded("SleepBackend", limits=limits) as server,
        opened(server.address) as stream,
    ):
        stream.send(sleeping(1, 4.0, subject))
        assert all(output.passed for output in stream.verdict().outputs)


def test_a_stop_lets_what_runs_end_and_sends_the_rest_away(
    tmp_path: Path, subject: Subject
) -> None:
    """SIGTERM: the running case passes; those that wait, also for data, are SHUTTING_DOWN."""
    with (
        servers.tcp(tmp_path, "SleepBackend") as server,
        opferry.connect(server.address, retry=ONCE) as client,
        opened(server.address) as stream,
    ):
        pids = family(server.pid)
        stream.send(sleeping(1, 2.0, subject))
        assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        stream.send(
            sleeping(2, 0.0, subject),
            sleeping(3, 0.0, subject),
            validating.sent_case(4, named=False, subject=subject),
        )
        assert stream.needed().case_id == 4
        time.sleep(0.3)  # lets the others be in line; true of every other order as well
        pids = sorted({*pids, *family(server.pid)})
        server.process.send_signal(signal.SIGTERM)
        started_s = time.monotonic()
        verdicts = {}
        for _ in range(4):
            verdict = stream.verdict()
            verdicts[verdict.case_id] = verdict
        assert server.process.wait(20) == 0, server.log.read_text()
        assert time.monotonic() - started_s < 15
        assert all(output.passed for output in verdicts[1].outputs)
        assert verdicts[1].outputs
        for number in (2, 3, 4):
            error = error_of(verdicts[number])
            assert error.reason == "SHUTTING_DOWN"
            assert error.may_retry
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_stop_during_hundreds_of_cases_loses_none(tmp_path: Path, subject: Subject) -> None:
    """SIGTERM in the middle, and the same address serves again: each case has its one result."""
    first = servers.TcpServer(tmp_path, workers=2)
    arguments = [subject.tnd(50, seed=seed, with_query=False) for seed in range(60)]
    recipes = {
        name: opferry.TensorSpec(opferry.DType.FLOAT32, value.shape)
        for name, value in arguments[0].items()
        if isinstance(value, np.ndarray)
    }
    with ThreadPoolExecutor() as pool, opferry.connect(first.address) as client:

        def validate(number: int) -> list[bytes]:
            found = client.validate(
                subject.name,
                recipes,
                attributes={"layout": 4},
                name=str(number),
            )
            return [output.digest for output in found.outputs]

        expected = [validate(number) for number in range(60)]
        running = [pool.submit(validate, number) for number in range(60)]
        time.sleep(0.2)
        assert first.stop() == 0
        with servers.tcp(tmp_path, address=first.address, workers=2):
            assert [call.result() for call in running] == expected
            assert_same_bits(subject.call(client, **arguments[0]), reference(arguments[0]))


def test_a_killed_front_leaves_no_process(tmp_path: Path, subject: Subject) -> None:
    """Kill -9 of the front in the middle: workers and judges end."""
    with servers.tcp(tmp_path, "SleepBackend") as server, opened(server.address) as stream:
        stream.send(sleeping(1, LONG_SLEEP_S, subject))
        with opferry.connect(server.address, retry=ONCE) as client:
            assert eventually(lambda: client.server_info().workers[0].running_count == 1)
        pids = family(server.pid)
        assert len(pids) > 2
        server.process.kill()
        server.process.wait()
        with pytest.raises(errors.TransportError):
            stream.read()
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
