"""The faults of a soak, and what a caller must be told of each."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.calls import SUBJECTS, Subject


class Fault(NamedTuple):
    """One kind of fault."""

    name: str
    """What it is."""
    action: str
    """What the simulator does; {stage_one} and {stage_two} are the operator's functions."""
    reason: str
    """The reason that the caller is told; "": none, the request succeeds all the same."""
    leaves_elements: bool = False
    """Whether elements stay as they were: unseen where the outputs begin as the inputs."""


BY_CONTENT = (
    Fault("AI core exception", "507015", "DEVICE_FAULT"),
    Fault("vector core exception", "507035", "DEVICE_FAULT"),
    Fault("crash", "crash", "DEVICE_FAULT"),
    Fault("AI core timeout", "hang", "DEVICE_FAULT"),
    Fault("an output not written", "unwritten:1", "OPERATOR_FAILED", leaves_elements=True),
    Fault("an element not written", "partial:0", "OPERATOR_FAILED", leaves_elements=True),
    Fault("an overrun", "overrun:0", "OPERATOR_FAILED"),
    Fault("a slow kernel", "slow:20000", ""),
)
"""Faults of one kernel among others: it is known by the first number of its first input."""

ALONE = (
    Fault("device memory, once", "aclrtMalloc:1:207018", ""),
    Fault("pinned memory, once", "aclrtMallocHost:1:207001", ""),
    Fault("copy in", "aclrtMemcpyAsync@h2d:1:return:507899", "DEVICE_FAULT"),
    Fault("copy out", "aclrtMemcpyAsync@d2h:1:507015", "DEVICE_FAULT"),
    Fault("memset", "aclrtMemsetAsync:1:return:107000", "SERVER_DEFECT"),
    Fault("stage one refuses", "{stage_one}:1:161002", "OPERATOR_FAILED"),
    Fault("tiling", "{stage_one}:1:561002", "OPERATOR_FAILED"),
    Fault("no kernel", "{stage_two}:1:return:561003", "OPERATOR_FAILED"),
    Fault("runtime error in stage two", "{stage_two}:1:return:361001", "OPERATOR_FAILED"),
    Fault("synchronisation", "aclrtSynchronizeStreamWithTimeout:1:107020", "RUN_DEADLINE"),
    Fault("no event", "aclrtCreateEventExWithFlag:1:207007", "DEVICE_MEMORY_EXHAUSTED"),
    Fault("bad event", "aclrtRecordEvent:1:107017", "SERVER_DEFECT"),
    Fault("no tensor", "aclCreateTensor:1:null", "OPERATOR_FAILED"),
    Fault("a lost device", "aclrtRecordEvent:2:return:507010", "DEVICE_FAULT"),
)
"""Faults of a call of the runtime, which strike whoever makes it: the request runs alone."""


def marker(index: int) -> float:
    """Return the number that stands for a fault of `BY_CONTENT`; every dtype has it exactly."""
    return 512.0 + 4 * index


def shown(subject: Subject) -> list[int]:
    """Return the indexes of those of `BY_CONTENT` that show in an operator's outputs."""
    in_place = any(output.overwrites for output in subject.operator.outputs)
    return [
        index for index, fault in enumerate(BY_CONTENT) if not (in_place and fault.leaves_elements)
    ]


def rule_alone(fault: Fault, subject: Subject) -> str:
    """Return the simulator's rule for one of `ALONE` and a request of an operator."""
    stage_one, stage_two = subject.stages
    return fault.action.format(stage_one=stage_one, stage_two=stage_two)


def content_rules() -> list[str]:
    """Return the simulator's rules for `BY_CONTENT`, of every operator."""
    return [
        f"{subject.stages[1]}:content={marker(index):g}:{BY_CONTENT[index].action}"
        for subject in SUBJECTS.values()
        for index in shown(subject)
    ]
