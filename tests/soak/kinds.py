"""The faults of a soak, and what a caller must be told of each."""

from __future__ import annotations

from typing import NamedTuple

KERNEL = "aclnnApplyRotaryPosEmbGrad"
STAGE_ONE = f"{KERNEL}GetWorkspaceSize"


class Fault(NamedTuple):
    """One kind of fault."""

    name: str
    """What it is."""
    action: str
    """What the simulator does."""
    reason: str
    """The reason that the caller is told; "": none, the request succeeds all the same."""


BY_CONTENT = (
    Fault("AI core exception", "507015", "DEVICE_FAULT"),
    Fault("vector core exception", "507035", "DEVICE_FAULT"),
    Fault("crash", "crash", "DEVICE_FAULT"),
    Fault("AI core timeout", "hang", "DEVICE_FAULT"),
    Fault("an output not written", "unwritten:1", "OPERATOR_FAILED"),
    Fault("an element not written", "partial:0", "OPERATOR_FAILED"),
    Fault("an overrun", "overrun:0", "OPERATOR_FAILED"),
    Fault("a slow kernel", "slow:20000", ""),
)
"""Faults of one kernel among others: it is known by the first number of its gradQueryEmbed."""

ALONE = (
    Fault("device memory, once", "aclrtMalloc:1:207018", ""),
    Fault("pinned memory, once", "aclrtMallocHost:1:207001", ""),
    Fault("copy in", "aclrtMemcpyAsync@h2d:1:return:507899", "DEVICE_FAULT"),
    Fault("copy out", "aclrtMemcpyAsync@d2h:1:507015", "DEVICE_FAULT"),
    Fault("memset", "aclrtMemsetAsync:1:return:107000", "SERVER_DEFECT"),
    Fault("stage one refuses", f"{STAGE_ONE}:1:161002", "OPERATOR_FAILED"),
    Fault("tiling", f"{STAGE_ONE}:1:561002", "OPERATOR_FAILED"),
    Fault("no kernel", f"{KERNEL}:1:return:561003", "OPERATOR_FAILED"),
    Fault("runtime error in stage two", f"{KERNEL}:1:return:361001", "OPERATOR_FAILED"),
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


def content_rules() -> list[str]:
    """Return the simulator's rules for `BY_CONTENT`."""
    return [
        f"{KERNEL}:content={marker(index):g}:{fault.action}"
        for index, fault in enumerate(BY_CONTENT)
    ]
