"""The known-answer case: what a worker runs before it counts as ready.

A backend that crashes, faults or refuses is not ready. One that gives a wrong value is not ready if
it runs the vendor's own package; a custom package is then ready all the same, and flagged, since
kernels that may be wrong are what it is for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opferry.core.dtypes import DType
from opferry.core.tensors import from_array
from opferry.operators import OPERATORS
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry.validation import compare
from opferry_server.backends.base import Backend, BackendInfo

PASSED, FAILED = "PASSED", "FAILED"
"""What can come of it."""


class WrongAnswerError(Exception):
    """The vendor's own package gave a wrong value."""


def with_known_answer(backend: Backend, info: BackendInfo) -> BackendInfo:
    """Run the case of every operator and return *info* with what came of it.

    Raises:
        WrongAnswerError: if the vendor's own package gives a wrong value.
        Problem: if the backend refuses or faults.
    """
    wrong = [text for operator in OPERATORS.values() if (text := _fault_of(backend, operator))]
    if wrong and info.must_be_right:
        raise WrongAnswerError("; ".join(wrong))
    found = replace(info.operator_package, known_answer=FAILED if wrong else PASSED)
    return replace(info, operator_package=found)


def _fault_of(backend: Backend, operator: Operator) -> str:
    """Return what is wrong with an operator's answer, "" if nothing is."""
    arrays, attributes = operator.known_answer_case()
    for array in arrays.values():
        array.flags.writeable = False
    specs = {name: from_array(name, array).spec for name, array in arrays.items()}
    plan = operator.check(specs, attributes)
    outputs = {name: np.zeros(spec.shape, spec.dtype.numpy) for name, spec in plan.outputs.items()}
    backend.execute(Call(operator, attributes, specs), arrays, outputs)
    golden = operator.reference(arrays, plan)
    for name, array in outputs.items():
        found = compare(array, golden[name], dtype=DType.FLOAT32)
        if not found.passed:
            return f"{operator.name}, known-answer case, {name}: {found.reason}"
    return ""
