"""Texts of torch_npu's errors, and the problems that are made of them; torch is not needed."""

from __future__ import annotations

import pytest

from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.backends.base import DeviceProblem
from opferry_server.backends.torch_problems import (
    problem_of_refusal,
    problem_of_text,
    status_in,
)
from tests.aclnn.test_fault_matrix import EXPECTED

# The forms that public reports of torch_npu show, reworded.
FORMS = {
    "stated": "synchronize:a.cpp:1 NPU function error: aclrtX(stream), error code is {code}",
    "operator": "zero_:a.cpp:1 NPU function error: call aclnnX failed, error code is {code}\n"
    "[ERROR] 2026-01-01-00:00:00 (PID:161002, Device:0, RankID:-1) ERR00100 PTA call failed.\n"
    "EZ9999: [PID: 507015] 2026-01-01-00:00:00.207.001 inner error",
    "colon": "ACL stream synchronize failed, error code:{code}",
}
BARE = {
    "failed": "EZ9903: [PID: 507014] 2026-01-01-00:00:00.507.014 launch failed: {code}\n  more",
    "bracket": "ERR01100 OPS call acl api failed\n[Error]: refused ({code}). See the log",
}
"""Forms in which a number is a status only if it is a known one."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", EXPECTED)
def test_a_status_means_the_same_as_on_the_aclnn_backend(code: int, form: str) -> None:
    """Reason, status, native code, and whether the worker lives on."""
    reason, _, ends_worker = EXPECTED[code]
    text = FORMS[form].format(code=code)
    problem = problem_of_text(text, "synchronize", checked=True, soc="Ascend950PR-simulated")
    assert isinstance(problem, DeviceProblem)
    assert problem.reason.value == reason
    assert problem.ends_worker == ends_worker
    assert problem.device_broken == (code in (507053, 507054))
    assert code in (problem.aclnn_status, problem.acl_error)
    assert problem.stage == "synchronize"
    assert problem.soc == "Ascend950PR-simulated"
    assert text.splitlines()[0] in problem.message


@pytest.mark.parametrize("form", BARE)
@pytest.mark.parametrize("code", MEANINGS)
def test_a_known_status_is_found_without_being_called_one(code: int, form: str) -> None:
    """Process ids and times before it are none."""
    assert status_in(BARE[form].format(code=code)) == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "inner error, (PID:161002, Device:0)",
        "[PID: 507015] at 00:00:00.507.015",
        "error code = 0x507015, stream 5070150, task a507015",
        "tensor of 123456 elements",
        "507015.5 seconds",
    ],
)
def test_other_numbers_are_no_status(text: str) -> None:
    """A text without one is OPERATOR_FAILED, whole, and the worker lives on."""
    assert status_in(text) is None
    problem = problem_of_text(text, "operator", checked=True, soc="")
    assert problem.reason.value == "OPERATOR_FAILED"
    assert text in problem.message
    assert not isinstance(problem, DeviceProblem)


def test_the_first_status_counts() -> None:
    """What follows it are consequences."""
    assert status_in("launch failed: 507015\nstream 161002\nfree failed: 507899") == 507015
    assert status_in("free failed: 507899\ncall failed, error code is 507015") == 507015


@pytest.mark.parametrize("checked", [True, False])
def test_arguments_that_a_wrapper_refuses(checked: bool) -> None:
    """The caller's fault if he wanted no check, a difference to be reported if he had one."""
    problem = problem_of_refusal("dim must be 3 or 4", checked=checked, soc="Ascend950PR")
    assert problem.reason.value == ("OPERATOR_FAILED" if checked else "REFUSED_BY_DEVICE")
    assert problem.aclnn_status == 161002
    assert "dim must be 3 or 4" in problem.message
    assert ("passed the contract" in problem.message) == checked
