"""The known-answer case: what a worker runs before it counts as ready.

A backend that crashes or faults is not ready. An operator that it refuses is not served, and the
others are: the device, or its CANN, has not that one. A wrong value of the vendor's own package
keeps it from getting ready. A custom package is then ready all the same, and flagged, since kernels
that may be wrong are what it is for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opferry.core.dtypes import DType
from opferry.core.execution import OperatorPackage
from opferry.core.problems import Problem
from opferry.core.tensors import from_array
from opferry.operators import OPERATORS
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry.validation import compare
from opferry_server.backends.base import Backend, BackendInfo, DeviceProblem

PASSED, FAILED = "PASSED", "FAILED"
"""What can come of it."""


class WrongAnswerError(Exception):
    """The vendor's own package gave a wrong value."""


def with_known_answer(backend: Backend, info: BackendInfo) -> BackendInfo:
    """Run the case of every operator that there is and return *info* with what came of it.

    Raises:
        WrongAnswerError: if the vendor's own package gives a wrong value.
        Problem: if the backend faults, or refuses every operator.
    """
    faults: dict[str, str] = {}
    refusals: dict[str, Problem] = {}
    for name in info.operators:
        try:
            faults[name] = _fault_of(backend, OPERATORS[name])
        except Problem as problem:
            if _tells_of_device(problem):
                raise
            if problem.argument in [output.name for output in OPERATORS[name].outputs]:
                faults[name] = problem.message  # of what it has computed, or left out
            else:
                refusals[name] = problem
    if not faults:
        raise next(iter(refusals.values()))
    wrong = [text for name, text in faults.items() if text and name not in info.may_be_wrong]
    if wrong:
        raise WrongAnswerError("; ".join(wrong))
    return replace(
        info,
        operator_package=_answered(info.operator_package, *faults.values()),
        operators=tuple(faults),
        own_packages={
            name: _answered(info.package_of(name), text) for name, text in faults.items()
        },
        refused={name: problem.message for name, problem in refusals.items()},
    )


def _tells_of_device(problem: Problem) -> bool:
    """Return whether a problem says that the device is not as it should be."""
    return isinstance(problem, DeviceProblem) and (
        problem.ends_worker or problem.probes_device or problem.device_broken
    )


def _answered(package: OperatorPackage, *faults: str) -> OperatorPackage:
    return replace(package, known_answer=FAILED if any(faults) else PASSED)


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
