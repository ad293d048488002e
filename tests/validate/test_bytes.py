"""What a validated case costs on the wire."""

from __future__ import annotations

from pathlib import Path

import opferry
from opferry.validation import CaseStatus, read_cases
from tests.support.calls import Subject
from tests.support.counting_proxy import counting_proxy
from tests.support.suite_runs import write_suite

MOST_BYTES = 4096
"""The most bytes for a case on average, both ways together, handshake included."""


def test_a_case_takes_little_of_the_line(cpu_server: str, tmp_path: Path, subject: Subject) -> None:
    """Recipes go up and verdicts come down, whatever the tensors' sizes."""
    cases = read_cases(write_suite(tmp_path / "suite.csv", 200, subject=subject)).cases
    with counting_proxy(cpu_server) as proxy:
        with opferry.connect(proxy.address) as client:
            results = list(client.validate_cases(cases))
        total = proxy.up_bytes + proxy.down_bytes
    assert {result.status for result in results} == {CaseStatus.PASS}
    tensors = sum(spec.data_bytes for case in cases for spec in case.inputs.values())
    print(f"{total / len(cases):.0f} bytes for a case, {tensors / len(cases):.0f} of tensors")
    assert total <= MOST_BYTES * len(cases)
