"""Runs pain case 16 on a backend, with arrays of which no page is ever touched.

    python -m tests.aclnn.int32_trap

Prints one JSON object: what the caller is told, and what the simulator counted.
"""

from __future__ import annotations

import json

import numpy as np

from opferry.core.problems import Problem
from opferry.operators.call import check_contract
from tests.aclnn import in_process
from tests.aclnn.test_device_memory import trap


def main() -> None:
    """Run the call and print what came of it."""
    backend = in_process.open_backend()
    call = trap()
    inputs = {
        name: np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.shape)
        for name, spec in call.inputs.items()
    }
    outputs = {
        name: np.broadcast_to(np.zeros((), spec.dtype.numpy), spec.shape)
        for name, spec in check_contract(call).outputs.items()
    }
    problem = None
    try:
        backend.execute(call, inputs, outputs)
    except Problem as found:
        problem = found.to_fields()
    simulator = in_process.Simulator()
    names = ("violations", "bytes.h2d", "total.device_allocations", "total.executors")
    counters = {name: simulator.counter(name) for name in names}
    print(json.dumps({"problem": problem, "counters": counters}))


if __name__ == "__main__":
    main()
