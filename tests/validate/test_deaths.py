"""Judges, workers and backends that fail in the middle of a run: who is told, who goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import opferry
from opferry import errors
from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.embedded import EmbeddedServer
from opferry.validation import CaseResult, CaseStatus, Recipe
from tests.support import servers, suites
from tests.support.backends import LONG_SLEEP_S, LongErrorBackend
from tests.support.calls import Subject, subject_of
from tests.support.processes import arena_count, eventually, family

pytestmark = pytest.mark.full

STORAGE = 12_000_000
"""The elements of a storage that a judge fills for some time; the view in it is small."""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server with one worker and one judge, which is there."""
    limits = {"idle_memory_bytes": 0}
    with servers.embedded(limits=limits, options={"judges": "1"}) as running:
        judged(running.address, suites.recipes())
        yield running


def judged(address: str, inputs: dict[str, Recipe]) -> CaseResult:
    with opferry.connect(address, timeout=60) as client:
        return client.validate(subject_of(inputs).name, inputs, attributes=suites.TND)


def laborious(subject: Subject) -> dict[str, Recipe]:
    """Return inputs that take a judge about a second, and nobody else any time."""
    spec = TensorSpec(DType.FLOAT32, (2, 1, 8), storage_shape=(STORAGE,))
    return {name: Recipe(spec) for name in suites.recipes(subject=subject)}


def judge(front: int, not_these: tuple[int, ...] = ()) -> int | None:
    """Return the judge of a server with one worker and one judge; None while there is none.

    The judge is the younger one, or whichever has replaced it.
    """
    pids = [pid for pid in family(front) if pid not in (front, *not_these)]
    ages = {pid: psutil.Process(pid).create_time() for pid in pids}
    return max(ages, key=lambda pid: (ages[pid], pid)) if len(ages) == 2 else None


def is_computing(pid: int) -> bool:
    """Return whether a process uses the processor just now."""
    process = psutil.Process(pid)
    before = process.cpu_times().user
    time.sleep(0.05)
    return process.cpu_times().user - before >= 0.02


def kill_at_work(front: int, not_these: tuple[int, ...] = ()) -> int:
    """Kill the judge as soon as it has begun a task; return its process id."""
    found: list[int] = []

    def at_work() -> bool:
        try:
            pid = judge(front, not_these)
            if pid is not None and arena_count(pid) > 0 and is_computing(pid):
                found.append(pid)
        except (psutil.Error, OSError):
            return False
        return bool(found)

    assert eventually(at_work, 30)
    os.kill(found[0], signal.SIGKILL)
    return found[0]


class Call(threading.Thread):
    """A validation in a thread of its own."""

    def __init__(self, address: str, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._address = address
        self._result: CaseResult | None = None
        self._error: errors.OpFerryError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = judged(self._address, laborious(self._subject))
        except errors.OpFerryError as error:
            self._error = error

    def result(self) -> CaseResult:
        self.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def test_a_case_whose_judge_dies_is_judged_all_the_same(
    server: EmbeddedServer, subject: Subject
) -> None:
    """Kill -9 in the middle of making inputs: another judge does it again, to the same bits."""
    expected = suites.told(judged(server.address, laborious(subject)))
    call = Call(server.address, subject)
    first = kill_at_work(server.pid)
    result = call.result()
    assert result.status is CaseStatus.PASS
    assert suites.told(result) == expected
    assert judge(server.pid) not in (None, first)


def test_a_case_whose_judges_die_twice_is_an_error(
    server: EmbeddedServer, subject: Subject
) -> None:
    """It says who died and how; the next case is judged, by a judge that is back."""
    call = Call(server.address, subject)
    first = kill_at_work(server.pid)
    second = kill_at_work(server.pid, (first,))
    with pytest.raises(errors.ServerError, match="judged: judge-0 was ended by SIGKILL") as caught:
        call.result()
    assert caught.value.reason == "SERVER_DEFECT"
    assert caught.value.request_id
    assert judged(server.address, suites.recipes(subject=subject)).status is CaseStatus.PASS
    assert eventually(lambda: judge(server.pid) not in (None, first, second))
    assert eventually(lambda: arena_count(server.pid) == 0)


def test_judges_that_die_between_tasks_are_replaced_unnoticed(
    server: EmbeddedServer, subject: Subject
) -> None:
    """Kill -9 of an idle judge fails nothing."""
    for _ in range(3):
        pid = judge(server.pid)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert judged(server.address, suites.recipes(subject=subject)).status is CaseStatus.PASS
        assert eventually(lambda pid=pid: judge(server.pid) not in (None, pid))


def test_a_killed_worker_costs_exactly_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject
) -> None:
    """Kill -9 of a device's worker: DEVICE_FAULT for the case that it ran, PASS for the others."""
    sleeper = tmp_path / "sleeper"
    monkeypatch.setenv("OPFERRY_TEST_SLEEPER", str(sleeper))
    cases = [suites.case(f"{n}", suites.recipes(cos=0.0, subject=subject)) for n in range(40)]
    cases[20] = suites.case("20", suites.recipes(cos=LONG_SLEEP_S, subject=subject))
    with (
        servers.embedded("SleepBackend", workers=2) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):

        def kill() -> None:
            assert eventually(lambda: sleeper.exists() and sleeper.read_text().endswith("\n"), 30)
            os.kill(int(sleeper.read_text()), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        results = list(client.validate_cases(cases))
        killer.join()
        again = list(client.validate_cases(cases[:20]))
    statuses = [result.status for result in results]
    assert statuses.pop(20) is CaseStatus.ERROR
    assert set(statuses) == {CaseStatus.PASS}
    error = results[20].error
    assert isinstance(error, errors.DeviceFaultError)
    assert error.reason == "DEVICE_FAULT"
    assert "SIGKILL" in error.message
    assert [suites.told(result) for result in again] == [suites.told(r) for r in results[:20]]


def test_crashes_hit_the_guilty_cases_and_no_others(subject: Subject) -> None:
    """Operators that end their process: each is a DEVICE_FAULT with its signal, the rest pass."""
    guilty = {7: signal.SIGSEGV, 15: signal.SIGABRT, 16: signal.SIGKILL}
    cases = [
        suites.case(
            f"{n}",
            suites.recipes(cos=-float(guilty[n]) if n in guilty else float(n + 1), subject=subject),
        )
        for n in range(24)
    ]
    with (
        servers.embedded("CrashBackend", workers=2) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        results = list(client.validate_cases(cases))
    for number, result in enumerate(results):
        if number in guilty:
            assert result.status is CaseStatus.ERROR
            assert isinstance(result.error, errors.DeviceFaultError)
            assert guilty[number].name in result.error.message
        else:
            assert result.status is CaseStatus.PASS, result.reason


@pytest.mark.parametrize(
    ("backend", "text"),
    [("DefectBackend", "ZeroDivisionError"), ("LongErrorBackend", "张量形状不匹配")],
)
def test_a_backend_that_raises_is_in_the_verdict(backend: str, text: str, subject: Subject) -> None:
    """OPERATOR_FAILED for each case; a long text is kept for GetErrorText."""
    with (
        servers.embedded(backend) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        results = list(
            client.validate_cases(
                [suites.case(f"{n}", suites.recipes(subject=subject)) for n in range(5)]
            )
        )
        for result in results:
            assert result.status is CaseStatus.ERROR
            error = result.error
            assert isinstance(error, errors.OperatorError)
            assert error.reason == "OPERATOR_FAILED"
            assert text in error.message
        if backend == "LongErrorBackend":
            assert results[0].error is not None
            assert client.error_text(results[0].error.request_id) == LongErrorBackend.TEXT
            assert results[0].error.aclnn_status == 561002


def test_a_run_over_the_limit_is_told_and_others_go_on(subject: Subject) -> None:
    """RUN_DEADLINE for the case that sleeps, PASS for those before and after."""
    cases = [
        suites.case(f"{n}", suites.recipes(cos=LONG_SLEEP_S if n == 3 else 0.0, subject=subject))
        for n in range(8)
    ]
    with (
        servers.embedded("SleepBackend", limits={"run_ms": 1000}) as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        results = list(client.validate_cases(cases))
    assert results[3].error is not None
    assert results[3].error.reason == "RUN_DEADLINE"
    del results[3]
    assert {result.status for result in results} == {CaseStatus.PASS}


def test_outputs_that_are_not_written_fail(subject: Subject) -> None:
    """An operator that does nothing is a FAIL with its worst element, not an error."""
    with (
        servers.embedded("IdleBackend") as server,
        opferry.connect(server.address, timeout=60) as client,
    ):
        result = client.validate(
            subject.name, suites.recipes(subject=subject), attributes=suites.TND
        )
    assert result.status is CaseStatus.FAIL
    assert all(output.findings is not None and output.findings.worst for output in result.outputs)
