"""Connections and servers that break in the middle of a run: every case has one result."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry.validation import Case, CaseStatus
from tests.support import servers, suites
from tests.support.calls import HEAVY, Subject
from tests.support.counting_proxy import counting_proxy
from tests.support.suites import told

PATIENT = opferry.RetryConfig(longest_wait_s=0.5)


def mixed(count: int, subject: Subject) -> list[Case]:
    """Return cases of recipes, of data, and some that are refused."""
    cases = []
    for number in range(count):
        inputs: dict[str, Any] = dict(suites.recipes(200, subject=subject))
        if number % 3 == 1:
            drawn = subject.tnd(200, 1, 1, seed=number, with_query=False)
            inputs = {name: value for name, value in drawn.items() if isinstance(value, np.ndarray)}
        if number % 10 == 9:
            inputs["cos"] = suites.recipes(3, subject=subject)["cos"]
        cases.append(suites.case(f"{number}", inputs))
    return cases


@pytest.mark.full
@pytest.mark.parametrize("dump", [False, True])
def test_a_server_that_is_killed_and_started_again_loses_no_case(
    tmp_path: Path, dump: bool, subject: Subject
) -> None:
    """Kill -9 twice in the middle of a run: the results are those of a run in peace."""
    cases = mixed(240, subject)
    with servers.tcp(tmp_path, workers=2) as calm, opferry.connect(calm.address) as client:
        expected = [told(result) for result in client.validate_cases(cases)]
    server = servers.TcpServer(tmp_path, workers=2)
    address = server.address
    found = []
    try:
        with opferry.connect(address, timeout=60, retry=PATIENT) as client:
            for result in client.validate_cases(cases, dump_outputs=dump):
                found.append(result)
                if len(found) in (30, 120):
                    server.process.kill()
                    server.process.wait()
                    server = servers.TcpServer(tmp_path, workers=2, address=address)
    finally:
        server.stop()
    assert [told(result) for result in found] == expected
    assert all(bool(r.dumped) == (dump and r.status is CaseStatus.PASS) for r in found)


@pytest.mark.full
def test_a_connection_that_is_cut_again_and_again_loses_no_case(subject: Subject) -> None:
    """Resets in the middle of whatever it carries, in both directions."""
    cases = mixed(300, subject)
    with (
        servers.embedded(workers=2) as server,
        opferry.connect(server.address) as plain,
        counting_proxy(server.address) as proxy,
        opferry.connect(proxy.address, timeout=60, retry=PATIENT) as client,
    ):
        expected = [told(result) for result in plain.validate_cases(cases)]
        done = threading.Event()

        def cut() -> None:
            while not done.wait(0.3):
                proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            found = []
            for result in client.validate_cases(cases):
                found.append(told(result))
                if len(found) == 200:
                    done.set()  # a run over this line would have an end only by chance
        finally:
            done.set()
            cutter.join()
    assert found == expected


@pytest.mark.parametrize("subject", HEAVY)
def test_a_server_that_does_not_come_back_is_given_up(tmp_path: Path, subject: Subject) -> None:
    """The cases without a verdict are NOT RUN, each once, the first with the error."""
    cases = mixed(100, subject)
    once = opferry.RetryConfig(attempts=2, total_s=1.0)
    with (
        servers.tcp(tmp_path) as server,
        opferry.connect(server.address, timeout=20, retry=once) as client,
    ):
        found = []
        for result in client.validate_cases(cases):
            found.append(result)
            if len(found) == 5:
                server.process.kill()
                server.process.wait()
    assert [result.case for result in found] == cases
    lost = [result for result in found if result.status is CaseStatus.NOT_RUN]
    assert lost
    assert found[-1].status is CaseStatus.NOT_RUN
    assert [result.error is not None for result in lost] == [True] + [False] * (len(lost) - 1)


@pytest.mark.full
def test_a_slow_and_distant_server_is_told_little(subject: Subject) -> None:
    """At 1 MB/s and 50 ms each way a run of recipes takes a moment: hardly any bytes cross."""
    cases = [suites.case(f"{n}", suites.recipes(2000, subject=subject)) for n in range(200)]
    with (
        servers.embedded(workers=2) as server,
        counting_proxy(
            server.address, up_rate=1e6, down_rate=1e6, up_delay_s=0.05, down_delay_s=0.05
        ) as proxy,
        opferry.connect(proxy.address) as client,
    ):
        results = list(client.validate_cases(cases))
        assert {result.status for result in results} == {CaseStatus.PASS}
        assert proxy.up_bytes < 200 * 1024
        assert proxy.down_bytes < 200 * 4096
