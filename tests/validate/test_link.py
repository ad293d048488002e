"""A slow line to the server: verdicts come over it, tensors do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import opferry
from opferry.validation import Case, CaseStatus, read_cases
from tests.support.counting_proxy import CountingProxy, counting_proxy
from tests.support.servers import embedded
from tests.support.suite_runs import write_rows_of

ROWS = 60
RATE = 4e6
"""The line's bytes per second, each way."""

DELAY_S = 0.015
"""Half of the line's round trip."""

SLOWER = 1.3
"""How much longer a run may take over the line than on loopback."""


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    """Rows of 64 MiB of inputs and outputs each."""
    # 11 MiB in each of q and k and their gradients, and in the gradients that come out
    whole, one = "(4,512,22,128)", "(4,512,1,128)"
    row = {
        "tensor_view_shapes": f"({whole},{whole},{one},{one},{whole},{whole})",
        "tensor_dtypes": "('float16',)",
        "attributes": "{'layout': 1}",
        "output_tensor_indexes": "(6,7,8,9)",
    }
    found = read_cases(write_rows_of(tmp_path / "cases.csv", [row] * ROWS)).cases
    inputs = sum(spec.data_bytes for spec in found[0].inputs.values())
    outputs = sum(found[0].inputs[output.like].data_bytes for output in found[0].operator.outputs)
    assert inputs + outputs >= 64 * 2**20
    return found


def seconds_and_bytes(cases: tuple[Case, ...], proxy: CountingProxy) -> tuple[float, int, int]:
    """Return how long a run takes over a line, and what it carries each way."""
    with opferry.connect(proxy.address) as client:
        client.server_info()
        started_s = time.monotonic()
        up, down = proxy.up_bytes, proxy.down_bytes
        results = list(client.validate_cases(cases))
        took_s = time.monotonic() - started_s
    assert {result.status for result in results} == {CaseStatus.PASS}
    return took_s, proxy.up_bytes - up, proxy.down_bytes - down


@pytest.mark.full
def test_a_slow_line_costs_next_to_nothing(cases: tuple[Case, ...]) -> None:
    """4 MB/s and 30 ms: at most 1.3 times the time of loopback, and as many bytes."""
    slow = {"up_rate": RATE, "down_rate": RATE, "up_delay_s": DELAY_S, "down_delay_s": DELAY_S}
    with embedded() as server:
        with counting_proxy(server.address) as near:
            seconds_and_bytes(cases[:4], near)  # judges start with the first
            fast_s, fast_up, fast_down = seconds_and_bytes(cases, near)
        with counting_proxy(server.address, **slow) as far:
            slow_s, slow_up, slow_down = seconds_and_bytes(cases, far)
    print(f"loopback {fast_s:.1f} s, slow line {slow_s:.1f} s, ratio {slow_s / fast_s:.2f}")
    print(f"up {fast_up} and {slow_up} bytes, down {fast_down} and {slow_down} bytes")
    assert slow_s <= SLOWER * fast_s
    # times are numbers, and larger ones take a byte or two more
    assert abs(slow_up - fast_up) <= 0.01 * fast_up + 200
    assert abs(slow_down - fast_down) <= 0.02 * fast_down
