"""A slow line to the server: verdicts come over it, tensors do not.

What it costs in time is measured by benchmarks/slow_line.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import opferry
from opferry.validation import Case, CaseStatus, read_cases
from tests.support.calls import Subject
from tests.support.counting_proxy import CountingProxy, counting_proxy
from tests.support.servers import embedded
from tests.support.suite_runs import SLOW_LINE, write_large_rows

ROWS = 8


@pytest.fixture
def cases(tmp_path: Path, subject: Subject) -> tuple[Case, ...]:
    """Rows of 64 MiB of inputs and outputs each."""
    found = read_cases(write_large_rows(tmp_path / "cases.csv", ROWS, subject)).cases
    inputs = sum(spec.data_bytes for spec in found[0].inputs.values())
    outputs = sum(found[0].inputs[output.like].data_bytes for output in found[0].operator.outputs)
    assert inputs + outputs >= 64 * 2**20
    return found


def carried_bytes(cases: tuple[Case, ...], proxy: CountingProxy) -> tuple[int, int]:
    """Return what a run over a line makes it carry, up and down."""
    with opferry.connect(proxy.address) as client:
        client.server_info()
        up, down = proxy.up_bytes, proxy.down_bytes
        results = list(client.validate_cases(cases))
    assert {result.status for result in results} == {CaseStatus.PASS}
    return proxy.up_bytes - up, proxy.down_bytes - down


@pytest.mark.full
def test_a_slow_line_carries_verdicts_alone(cases: tuple[Case, ...]) -> None:
    """Over 4 MB/s and 30 ms a run carries what it does on loopback: a few KB a case, not MiB."""
    with embedded() as server:
        with counting_proxy(server.address) as near:
            near_up, near_down = carried_bytes(cases, near)
        with counting_proxy(server.address, **SLOW_LINE) as far:
            far_up, far_down = carried_bytes(cases, far)
    print(f"up {near_up} and {far_up} bytes, down {near_down} and {far_down} bytes")
    assert near_up + near_down <= 5_000 * len(cases)
    # times are numbers, and larger ones take a byte or two more
    assert abs(far_up - near_up) <= 0.02 * near_up + 300
    assert abs(far_down - near_down) <= 0.05 * near_down + 300
