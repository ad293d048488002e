"""The operators that opferry knows, one module each, and the table of them."""

from __future__ import annotations

from opferry.core.problems import Problem, Reason
from opferry.operators.apply_rotary_pos_emb import APPLY_ROTARY_POS_EMB
from opferry.operators.apply_rotary_pos_emb_grad import APPLY_ROTARY_POS_EMB_GRAD
from opferry.operators.base import Operator

OPERATORS: dict[str, Operator] = {
    operator.name: operator for operator in (APPLY_ROTARY_POS_EMB_GRAD, APPLY_ROTARY_POS_EMB)
}
"""Every operator by its CANN name."""


def operator_named(name: str) -> Operator:
    """Return an operator by its name in any of the users' spellings.

    Args:
        name: the CANN name ("ApplyRotaryPosEmbGrad"), the Python name
            ("apply_rotary_pos_emb_grad"), the aclnn name ("aclnnApplyRotaryPosEmbGrad"), or a
            dotted path that ends in the Python name.

    Raises:
        Problem: OPERATOR_NOT_SUPPORTED, listing the known ones.
    """
    last = name.rsplit(".", 1)[-1]
    for operator in OPERATORS.values():
        if last in (operator.python_name, operator.aclnn_name) or (
            last.removeprefix("aclnn") == operator.name
        ):
            return operator
    raise Problem(
        Reason.OPERATOR_NOT_SUPPORTED,
        f"operator {name[:80]!r} is not known here; known are {', '.join(OPERATORS)}",
        argument="operator",
        given=name[:80],
        allowed=", ".join(OPERATORS),
    )
