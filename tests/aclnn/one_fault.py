"""Runs one request on the simulator for each fault rule, each in a process of its own.

    python -m tests.aclnn.one_fault OPERATOR RULE ...

Prints one JSON object a line: what the backend made of the fault. A fresh process for each, since a
fault poisons the one in which it happens; forked before any library is loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np

from opferry.core.problems import Problem
from opferry.core.tensors import from_array
from opferry.operators.call import Call, check_contract
from opferry_server.backends.aclnn.backend import AclnnBackend
from opferry_server.backends.base import BackendSettings, DeviceProblem
from tests.support.calls import SUBJECTS

COUNTERS = ("live.tensors", "live.executors", "live.events", "violations")


def main(operator: str, rules: list[str]) -> None:
    """Run every rule and print what came of it."""
    for rule in rules:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.write(writer, json.dumps(outcome(operator, rule)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            print(stream.read() or json.dumps({"rule": rule, "died": True}), flush=True)
        os.waitpid(child, 0)


def outcome(operator: str, rule: str) -> dict[str, Any]:
    """Return what the backend makes of a fault, and what it leaves behind."""
    backend = AclnnBackend(BackendSettings(lock_folder=""))
    subject = SUBJECTS[operator].operator
    arrays, attributes = subject.known_answer_case()
    call = Call(subject, attributes, {name: from_array(name, a).spec for name, a in arrays.items()})
    outputs = {
        name: np.empty(spec.shape, spec.dtype.numpy)
        for name, spec in check_contract(call).outputs.items()
    }
    backend.execute(call, arrays, outputs)
    backend._device.trim()  # so that the next allocation asks the runtime
    simulator = ctypes.CDLL("libascendcl.so")
    simulator.opferrySimCounter.restype = ctypes.c_int64
    assert simulator.opferrySimInject(rule.encode()) == 0
    found: dict[str, Any] = {"rule": rule}
    try:
        backend.execute(call, arrays, outputs)
    except Problem as problem:
        found |= problem.to_fields()
        if isinstance(problem, DeviceProblem):
            found["ends_worker"] = problem.ends_worker
            found["device_broken"] = problem.device_broken
    found["left"] = {name: simulator.opferrySimCounter(name.encode()) for name in COUNTERS}
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
