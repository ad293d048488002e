"""What CANN's status codes mean and what follows from each: one table, one check.

Names are CANN's (rt_error_codes.h for 1xxxxx, 2xxxxx and 5070xx to 5079xx, the documents of the
aclnn return codes for 161xxx, 361xxx and 561xxx).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from opferry.core.problems import Reason, StatusCode
from opferry_server.backends.base import DeviceProblem


class Effect(Enum):
    """What a status says of the device and of the worker that met it."""

    NONE = "none"
    """Nothing: the request, or the installation, is at fault."""
    PROBE = "probe"
    """Nobody knows how the device is: another process finds out."""
    RECYCLE = "recycle"
    """The process has run out of something: it is replaced after the request."""
    FAULT = "fault"
    """The process is poisoned: it ends at once, without cleaning up."""
    LOST = "lost"
    """As a fault; the device itself is gone for now."""
    BROKEN = "broken"
    """As a fault; the device's memory is damaged, and no probe returns it."""


ENDS_WORKER = (Effect.RECYCLE, Effect.FAULT, Effect.LOST, Effect.BROKEN)
"""The effects after which the process ends."""


class Meaning(NamedTuple):
    """One row of the table."""

    name: str
    """CANN's name of the status."""
    reason: Reason
    """The reason that the caller sees."""
    effect: Effect
    """What it says of device and worker."""
    status: StatusCode | None = None
    """The gRPC status where it is not the reason's own."""


_INSTALLATION = (Reason.OPERATOR_FAILED, Effect.NONE, StatusCode.FAILED_PRECONDITION)
_DEFECT = (Reason.SERVER_DEFECT, Effect.NONE)
_TIMEOUT = (Reason.RUN_DEADLINE, Effect.FAULT)
_FAULT = (Reason.DEVICE_FAULT, Effect.FAULT)
_LOST = (Reason.DEVICE_FAULT, Effect.LOST)
_BROKEN = (Reason.DEVICE_FAULT, Effect.BROKEN)
_MEMORY = (Reason.DEVICE_MEMORY_EXHAUSTED, Effect.NONE)
_USED_UP = (Reason.DEVICE_MEMORY_EXHAUSTED, Effect.RECYCLE)
_REFUSED = (Reason.OPERATOR_FAILED, Effect.NONE)

MEANINGS: dict[int, Meaning] = {
    161001: Meaning("ACLNN_ERR_PARAM_NULLPTR", *_REFUSED),
    161002: Meaning("ACLNN_ERR_PARAM_INVALID", *_REFUSED),
    361001: Meaning("ACLNN_ERR_RUNTIME_ERROR", Reason.OPERATOR_FAILED, Effect.PROBE),
    561001: Meaning("ACLNN_ERR_INNER_INFERSHAPE_ERROR", *_REFUSED),
    561002: Meaning("ACLNN_ERR_INNER_TILING_ERROR", *_REFUSED),
    561003: Meaning("ACLNN_ERR_INNER_FIND_KERNEL_ERROR", *_INSTALLATION),
    561107: Meaning("ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND", *_INSTALLATION),
    561112: Meaning("ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND", *_INSTALLATION),
    107002: Meaning("ACL_ERROR_RT_CONTEXT_NULL", *_DEFECT),
    107003: Meaning("ACL_ERROR_RT_STREAM_CONTEXT", *_DEFECT),
    107017: Meaning("ACL_ERROR_RT_INVALID_HANDLE", *_DEFECT),
    107019: Meaning("ACL_ERROR_RT_WAIT_TIMEOUT", *_TIMEOUT),
    107020: Meaning("ACL_ERROR_RT_TASK_TIMEOUT", *_TIMEOUT),
    107023: Meaning("ACL_ERROR_RT_STREAM_ABORT", *_DEFECT),
    207001: Meaning("ACL_ERROR_RT_MEMORY_ALLOCATION", *_MEMORY),
    207018: Meaning("ACL_ERROR_RT_DEVICE_OOM", *_MEMORY),
    207007: Meaning("ACL_ERROR_RT_NO_EVENT_RESOURCE", *_USED_UP),
    207008: Meaning("ACL_ERROR_RT_NO_STREAM_RESOURCE", *_USED_UP),
    507010: Meaning("ACL_ERROR_RT_LOST_HEARTBEAT", *_LOST),
    507011: Meaning("ACL_ERROR_RT_MODEL_EXECUTE", *_FAULT),
    507014: Meaning("ACL_ERROR_RT_AICORE_TIMEOUT", *_FAULT),
    507015: Meaning("ACL_ERROR_RT_AICORE_EXCEPTION", *_FAULT),
    507016: Meaning("ACL_ERROR_RT_AICORE_TRAP_EXCEPTION", *_FAULT),
    507017: Meaning("ACL_ERROR_RT_AICPU_TIMEOUT", *_FAULT),
    507018: Meaning("ACL_ERROR_RT_AICPU_EXCEPTION", *_FAULT),
    507033: Meaning("ACL_ERROR_RT_DEV_SETUP_ERROR", *_LOST),
    507034: Meaning("ACL_ERROR_RT_VECTOR_CORE_TIMEOUT", *_FAULT),
    507035: Meaning("ACL_ERROR_RT_VECTOR_CORE_EXCEPTION", *_FAULT),
    507036: Meaning("ACL_ERROR_RT_VECTOR_CORE_TRAP_EXCEPTION", *_FAULT),
    507042: Meaning("ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW", *_FAULT),
    507043: Meaning("ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW", *_FAULT),
    507044: Meaning("ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW", *_FAULT),
    507045: Meaning("ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW", *_FAULT),
    507046: Meaning("ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", *_FAULT),
    507048: Meaning("ACL_ERROR_RT_FFTS_PLUS_TIMEOUT", *_FAULT),
    507053: Meaning("ACL_ERROR_RT_DEVICE_MEM_ERROR", *_BROKEN),
    507054: Meaning("ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR", *_BROKEN),
    507899: Meaning("ACL_ERROR_RT_DRV_INTERNAL_ERROR", *_LOST),
    507901: Meaning("ACL_ERROR_RT_SOCKET_CLOSE", *_LOST),
}
"""The codes that are told apart; `meaning_of` knows what to make of all others."""

OUT_OF_MEMORY = (207001, 207018)
"""The codes after which pools are trimmed and the allocation is tried once more."""


def meaning_of(code: int) -> Meaning:
    """Return what a status means; one that is not in the table goes by its family."""
    found = MEANINGS.get(code)
    if found is not None:
        return found
    family = str(code)[:3]
    if family == "561":
        return Meaning("ACLNN_ERR_INNER", *_REFUSED)
    if family == "161":
        return Meaning("ACLNN_ERR_PARAM", *_REFUSED)
    if family in ("107", "100", "145", "148"):
        return Meaning("ACL_ERROR", *_DEFECT)
    return Meaning("ACL_ERROR_RT" if family == "507" else "unknown status", *_FAULT)


def is_aclnn(code: int) -> bool:
    """Return whether a code is one of the operators' stages, and not the runtime's."""
    return str(code)[:3] in ("161", "361", "561")


class AclProblem(DeviceProblem):
    """A problem that a status of CANN's stands behind."""


class AclDoubt(AclProblem):
    """One after which nobody knows how the device is."""

    probes_device = True


class AclFault(AclProblem):
    """One after which the process can do no more work."""

    ends_worker = True


class AclBroken(AclFault):
    """One after which the device is out of service."""

    device_broken = True


def problem_of(
    code: int, function: str, stage: str, text: str, *, checked: bool, soc: str
) -> AclProblem:
    """Return the problem of a call that returned *code*.

    Args:
        code: the status.
        function: the C function that returned it.
        stage: where the request was: "malloc", "copy_in", "stage_one", "stage_two", "synchronize"
            or "copy_out".
        text: what aclGetRecentErrMsg said, read at once on the same thread.
        checked: whether the call had passed the operator's contract.
        soc: the system on chip.
    """
    meaning = meaning_of(code)
    reason, status = meaning.reason, meaning.status
    said = f"{function} returned {code} ({meaning.name})"
    refused = str(code)[:3] == "161" or code in (561001, 561002)
    if refused and checked:
        said += "; the call passed the contract and was refused by the device"
    elif refused:
        reason = Reason.REFUSED_BY_DEVICE
    if text:
        said += f": {text}"
    kind = AclFault if meaning.effect in ENDS_WORKER else AclProblem
    if meaning.effect is Effect.BROKEN:
        kind = AclBroken
    if meaning.effect is Effect.PROBE:
        kind = AclDoubt
    return kind(
        reason,
        said,
        aclnn_status=code if is_aclnn(code) else None,
        acl_error=None if is_aclnn(code) else code,
        stage=stage,
        soc=soc or None,
        status=status,
    )
