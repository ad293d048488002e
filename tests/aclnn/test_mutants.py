"""The backend with a mistake in it: the simulator catches each one, whatever the speed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.aclnn import in_process
from tests.aclnn.mutants import MUTANTS
from tests.support.calls import Subject

CAUGHT = {
    "free-before-synchronise": "aclrtFree: freed before the stream was synchronised",
    "release-before-synchronise": "aclrtFree: freed before the stream was synchronised",
    "executor-twice": "{stage_two}: the executor was destroyed",
    "tensor-destroyed-early": "aclDestroyTensor: destroyed before the stream was synchronised",
    "context-not-set": "aclrtCreateStreamWithConfig: this thread has no context",
    "another-threads-stream": "this thread has no context",
    "workspace-too-small": "{stage_two}: a workspace of {half} bytes; stage one asked for {whole}",
}
"""What the simulator says first of each mutant."""

WORKSPACE = {"apply_rotary_pos_emb_grad": 3072, "apply_rotary_pos_emb": 16 * 2**20}
"""What stage one asks for."""

TOLD = {
    "release-before-synchronise": "207002",
    "executor-twice": "561103",
    "tensor-destroyed-early": "161002",
    "context-not-set": "107002",
    "another-threads-stream": "107002",
    "workspace-too-small": "361001",
}
"""The status that the caller of each is told of; the others never look at it."""


def outcome(name: str, subject: Subject) -> dict[str, Any]:
    """What came of a mutant's two requests."""
    done = in_process.start("tests.aclnn.mutants", name, subject.name)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_without_a_mistake_nothing_is_caught(subject: Subject) -> None:
    """The control: the same requests by the backend as it is."""
    nothing = {"made": 0, "violations": [], "told": [], "right": [True, True]}
    assert outcome("none", subject) == nothing


@pytest.mark.parametrize("name", CAUGHT)
def test_a_mistake_is_caught(name: str, subject: Subject) -> None:
    """The violation is recorded, and the caller is told, where the backend looks."""
    found = outcome(name, subject)
    whole = WORKSPACE[subject.name]
    stage_two = subject.stages[1]
    words = CAUGHT[name].format(stage_two=stage_two, half=whole // 2, whole=whole)
    assert found["made"] >= 1, "the mutant changed nothing: what it changes is gone"
    assert words in found["violations"][0]
    if name in TOLD:
        assert found["told"]
        assert TOLD[name] in found["told"][0]
    else:
        assert found["told"] == []


def test_every_mutant_is_tried() -> None:
    """None is left out here."""
    assert set(CAUGHT) | {"none"} == set(MUTANTS)
