"""Operators' attributes to messages and back: one pair of functions for each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from opferry.core.layouts import RotaryMode
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.operators import OPERATORS
from opferry.operators.apply_rotary_pos_emb import ApplyRotaryPosEmbAttributes
from opferry.operators.apply_rotary_pos_emb_grad import ApplyRotaryPosEmbGradAttributes
from opferry.operators.base import Operator
from opferry.v1 import operator_service_pb2, rotary_pb2, validation_pb2

_MODE_NUMBERS: Mapping[str, rotary_pb2.RotaryMode] = {
    RotaryMode.HALF.value: rotary_pb2.ROTARY_MODE_HALF,
    RotaryMode.INTERLEAVE.value: rotary_pb2.ROTARY_MODE_INTERLEAVE,
    RotaryMode.QUARTER.value: rotary_pb2.ROTARY_MODE_QUARTER,
}
_MODES = {int(number): mode for mode, number in _MODE_NUMBERS.items()} | {0: ""}


class _Rotary(NamedTuple):
    """The attributes of a rotary operator, which are a mode and a layout."""

    attributes: Callable[[str, int], Any]
    """Their class in the vocabulary."""
    message: Callable[..., Message]
    """Their class in the schema."""

    def to_message(self, attributes: Any) -> Message:
        """Return them as a message.

        Raises:
            Problem: ENUM_UNKNOWN for a value that the schema cannot express.
        """
        mode = _MODE_NUMBERS.get(attributes.rotary_mode)
        if mode is None or not -(2**31) <= attributes.layout < 2**31:
            name, given = (
                ("rotary_mode", attributes.rotary_mode)
                if mode is None
                else ("layout", str(attributes.layout))
            )
            raise Problem(
                Reason.ENUM_UNKNOWN,
                f"{name} {given[:40]!r} has no number in the schema and cannot be sent",
                argument=name,
                given=given[:40],
                aclnn_status=ACLNN_ERR_PARAM_INVALID,
            )
        return self.message(rotary_mode=mode, layout=attributes.layout)

    def from_message(self, message: Any) -> Any:
        """Return them of a message."""
        mode = _MODES.get(message.rotary_mode, str(int(message.rotary_mode)))
        return self.attributes(mode, int(message.layout))


_GRAD = _Rotary(ApplyRotaryPosEmbGradAttributes, rotary_pb2.ApplyRotaryPosEmbGradAttributes)
_FORWARD = _Rotary(ApplyRotaryPosEmbAttributes, rotary_pb2.ApplyRotaryPosEmbAttributes)

_ATTRIBUTES: Mapping[str, tuple[Callable[[Any], Message], Callable[[Any], Any]]] = {
    "apply_rotary_pos_emb_grad": (_GRAD.to_message, _GRAD.from_message),
    "apply_rotary_pos_emb": (_FORWARD.to_message, _FORWARD.from_message),
}
"""For each operator, by its field in the oneof: vocabulary to message, and back."""


def attributes_message(operator: Operator, attributes: Any) -> Any:
    """Return an operator's attributes as its message.

    Raises:
        Problem: ENUM_UNKNOWN for a value that the schema cannot express.
    """
    return _ATTRIBUTES[operator.python_name][0](attributes)


def attributes_from_message(operator: Operator, message: Any) -> Any:
    """Return an operator's attributes of its message; nothing is checked but what they are."""
    return _ATTRIBUTES[operator.python_name][1](message)


def operator_of(
    message: operator_service_pb2.ExecuteHeader
    | operator_service_pb2.PlanRequest
    | validation_pb2.ValidateCase,
) -> tuple[Operator, Any]:
    """Return the operator that a message names by the attributes that it carries, and those.

    Raises:
        Problem: OPERATOR_NOT_SUPPORTED if it names none.
    """
    field = message.WhichOneof("attributes")
    for operator in OPERATORS.values():
        if operator.python_name == field:
            return operator, attributes_from_message(operator, getattr(message, field))
    raise Problem(
        Reason.OPERATOR_NOT_SUPPORTED,
        f"the header names no operator; set the attributes of one of {', '.join(OPERATORS)}",
        argument="attributes",
        allowed=", ".join(OPERATORS),
    )
