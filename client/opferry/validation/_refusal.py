"""The verdict on a row that is to be refused."""

from __future__ import annotations

from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_NULLPTR
from opferry.errors import OpFerryError
from opferry.validation.outcome import CaseStatus

REFUSALS = (ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID, 561001, 561002)
"""The statuses by which a device may refuse a call that nobody checked before.

The last two are those of its shape inference and its tiling.
"""


def judge_refusal(
    expected: int, error: OpFerryError | None, *, checked: bool, executed: bool
) -> tuple[CaseStatus, str]:
    """Return the verdict and, also for a PASS, what was said.

    Args:
        expected: the row's status.
        error: what came in place of outputs; None: the call succeeded.
        checked: whether the contract was to judge the call; only its very status is right then.
        executed: whether the call was handed over, or was refused before for want of anything that
            could be sent.
    """
    if error is None:
        return CaseStatus.FAIL, f"succeeded; it was to be refused with {expected}"
    allowed = (expected,) if checked or not executed else REFUSALS
    if error.aclnn_status in allowed:
        before = "" if executed or checked else " before anything could be sent"
        return (
            CaseStatus.PASS,
            f"refused{before} with {error.aclnn_status}, expected {expected}: {error.message}",
        )
    return CaseStatus.FAIL, f"was to be refused with {' or '.join(map(str, allowed))}: {error}"
