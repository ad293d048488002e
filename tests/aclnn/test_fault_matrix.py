"""Every status that CANN can give, at every point of a request: what the caller is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from opferry_server.backends.aclnn.status import MEANINGS
from tests.support import servers, simulator
from tests.support.calls import HEAVY, Subject

STAGES = {
    "malloc": "aclrtMalloc:1+:{code}",
    "copy_in": "aclrtMemcpyAsync@h2d:1+:return:{code}",
    "stage_one": "{stage_one}:1:{code}",
    "stage_two": "{stage_two}:1:return:{code}",
    "synchronize": "aclrtSynchronizeStreamWithTimeout:{after_inputs}:{code}",
    "copy_out": "aclrtMemcpyAsync@d2h:1:return:{code}",
}
"""How the simulator is told to give a status there."""


def rule_of(subject: Subject, stage: str, code: int) -> str:
    """Return the simulator's rule for a status at a stage of an operator's request."""
    stage_one, stage_two = subject.stages
    return STAGES[stage].format(
        code=code,
        stage_one=stage_one,
        stage_two=stage_two,
        # each of the inputs is waited for
        after_inputs=len(subject.operator.inputs) + 1,
    )


# Worked out from the vendor's and our documents, not from the table under test.
GROUPS: list[tuple[tuple[int, ...], str, str, bool]] = [
    ((161001, 161002, 561001, 561002), "OPERATOR_FAILED", "INTERNAL", False),
    ((361001,), "OPERATOR_FAILED", "INTERNAL", False),
    ((561003, 561107, 561112), "OPERATOR_FAILED", "FAILED_PRECONDITION", False),
    ((561000, 561101, 561103), "OPERATOR_FAILED", "INTERNAL", False),
    ((107019, 107020), "RUN_DEADLINE", "DEADLINE_EXCEEDED", True),
    ((107002, 107003, 107017, 107000), "SERVER_DEFECT", "INTERNAL", False),
    ((207001, 207018), "DEVICE_MEMORY_EXHAUSTED", "RESOURCE_EXHAUSTED", False),
    ((207007, 207008), "DEVICE_MEMORY_EXHAUSTED", "RESOURCE_EXHAUSTED", True),
    ((507014, 507034, 507046, 507048, 507017), "DEVICE_FAULT", "INTERNAL", True),
    ((507015, 507016, 507018, 507035, 507036, 507011), "DEVICE_FAULT", "INTERNAL", True),
    ((507042, 507043, 507044, 507045), "DEVICE_FAULT", "INTERNAL", True),
    ((507053, 507054), "DEVICE_FAULT", "INTERNAL", True),
    ((507010, 507033, 507899, 507901), "DEVICE_FAULT", "INTERNAL", True),
    ((507000, 507999, 999999), "DEVICE_FAULT", "INTERNAL", True),
]
EXPECTED = {code: rest for codes, *rest in GROUPS for code in codes}
STATUS_NUMBERS = {
    "INTERNAL": 13,
    "FAILED_PRECONDITION": 9,
    "DEADLINE_EXCEEDED": 4,
    "RESOURCE_EXHAUSTED": 8,
}


Outcome = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="module", params=HEAVY)
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """What came of a code at a stage, for an operator."""
    subject = request.param
    rules = [rule_of(subject, stage, code) for stage in STAGES for code in EXPECTED]
    environment = {**os.environ, **simulator.environment(), "PYTHONPATH": servers.PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-m", "tests.aclnn.one_fault", subject.name, *rules],
        capture_output=True,
        text=True,
        env=environment,
        cwd=servers.ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by_rule = {found["rule"]: found for found in lines}
    return lambda stage, code: by_rule[rule_of(subject, stage, code)]


@pytest.mark.full
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("code", EXPECTED)
def test_a_status_is_told_as_what_it_is(outcome: Outcome, code: int, stage: str) -> None:
    """Reason, gRPC status, native code, name, stage, and whether the worker lives on."""
    found = outcome(stage, code)
    reason, status, ends_worker = EXPECTED[code]
    assert found["reason"] == reason, found
    assert found["status"] == STATUS_NUMBERS[status]
    assert found["ends_worker"] == ends_worker
    assert found["device_broken"] == (code in (507053, 507054))
    native = "aclnn_status" if str(code)[:3] in ("161", "361", "561") else "acl_error"
    assert found[native] == code
    assert str(code) in found["message"]
    assert found["stage"] == stage
    assert found["soc"].startswith("Ascend950")
    if code in MEANINGS:
        assert MEANINGS[code].name in found["message"]


@pytest.mark.full
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("code", [code for code, row in EXPECTED.items() if not row[2]])
def test_nothing_is_left_after_an_error_that_is_no_fault(
    outcome: Outcome, code: int, stage: str
) -> None:
    """Tensors, executors and events are gone, and no rule of the runtime was broken."""
    left = outcome(stage, code)["left"]
    if stage == "stage_two":
        # the simulator, like the runtime, says nothing of an executor whose launch it refused
        left = {name: count for name, count in left.items() if name != "live.executors"}
    assert set(left.values()) == {0}, left


def test_every_code_of_the_table_is_in_the_matrix() -> None:
    """A code that is told apart is tried."""
    assert set(MEANINGS) - set(EXPECTED) == {107023}
