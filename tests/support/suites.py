"""Cases for the SDK's validation, made without a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opferry import _validation_calls
from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry.validation import Case, CaseResult, Recipe
from opferry.validation.ranges import ValueRange
from tests.support.calls import GRAD, Subject, subject_of

OPERATOR = "apply_rotary_pos_emb_grad"
TND = {"layout": 4}


def recipes(
    tokens: int = 2, width: int = 8, *, cos: float | None = None, subject: Subject = GRAD
) -> dict[str, Recipe]:
    """Return the inputs of a call with layout TND, one head; the backward's without query and key.

    Args:
        tokens: T.
        width: D.
        cos: what fills cos, if given.
        subject: the operator.
    """
    spec = TensorSpec(DType.FLOAT32, (tokens, 1, width))
    names = (*subject.vectors, "cos", "sin")
    found = {name: Recipe(spec) for name in names}
    if cos is not None:
        found["cos"] = replace(found["cos"], values=ValueRange(cos, cos))
    return found


def case(name: str, inputs: dict[str, Any] | None = None, **fields: Any) -> Case:
    """Return a case of some inputs, of their operator; fields override the case's own.

    Without inputs it is the backward's, of `recipes`.
    """
    given = inputs or recipes()
    made = _validation_calls.case_of(subject_of(given).name, given, TND, name, None)
    return replace(made, **fields)


def told(result: CaseResult) -> tuple[Any, ...]:
    """Return what of a result does not depend on when and where it came about."""
    outputs = [
        (output.name, output.status, output.reason, output.digest, output.golden_digest)
        for output in result.outputs
    ]
    return result.case.name, result.status, dict(result.input_digests), outputs
