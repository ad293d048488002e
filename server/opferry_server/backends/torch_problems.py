"""What torch_npu and the wrappers raise, as problems.

torch_npu raises RuntimeError for everything. A status of CANN's stands in its text, in one of many
forms: "error code is 507015", "error code:507015", "... failed: 507015".
"""

from __future__ import annotations

import re

from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry_server.backends.aclnn.status import MEANINGS, problem_of

OUT_OF_MEMORY = "NPU out of memory"
"""What torch's allocator says, without a status, when it has given back all that it kept."""

_STATED = re.compile(r"error code(?: is|:| =)? ?(\d{6})\b", re.IGNORECASE)
"""A status that is called one."""

_NUMBER = re.compile(r"(?<![\w.])(?<!PID:)(?<!PID: )\d{6}(?!\w|\.\d)")
"""A number that may be one: no process id, no part of a time, of a word or of a longer number."""


def status_in(text: str) -> int | None:
    """Return the first status in an error's text, None if there is none.

    Args:
        text: of any length. A number that is called an error code counts whatever it is; any other
            only if it is a status that is told apart.
    """
    stated = _STATED.search(text)
    if stated:
        return int(stated[1])
    numbers = map(int, _NUMBER.findall(text))
    return next((number for number in numbers if number in MEANINGS), None)


def problem_of_text(text: str, stage: str, *, checked: bool, soc: str) -> Problem:
    """Return the problem of a RuntimeError: the one that its status has on every Ascend backend.

    Args:
        text: the error's text.
        stage: where the request was: "init", "copy_in", "operator", "synchronize" or "copy_out".
        checked: whether the call had passed the operator's contract.
        soc: the system on chip.
    """
    text = text.strip()
    full = OUT_OF_MEMORY in text
    code = None if full else status_in(text)
    if code is not None:
        return problem_of(code, "torch_npu", stage, text, checked=checked, soc=soc)
    reason = Reason.DEVICE_MEMORY_EXHAUSTED if full else Reason.OPERATOR_FAILED
    return Problem(reason, f"torch_npu says: {text}", stage=stage, soc=soc or None)


def problem_of_refusal(text: str, *, checked: bool, soc: str) -> Problem:
    """Return the problem of arguments that the wrapper itself refuses, before it asks CANN.

    Args:
        text: the text of its ValueError or TypeError.
        checked: whether the call had passed the operator's contract.
        soc: the system on chip.
    """
    said = "cann_ops_transformer refused the call before it reached the device"
    if checked:
        said += ", though it passed the contract"
    return Problem(
        Reason.OPERATOR_FAILED if checked else Reason.REFUSED_BY_DEVICE,
        f"{said}: {text}",
        # what CANN says of such arguments
        aclnn_status=ACLNN_ERR_PARAM_INVALID,
        stage="operator",
        soc=soc or None,
    )
