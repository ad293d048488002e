"""The backend in this very process, without a server: for the programs that tests start.

Each of these programs is a process of its own, since the simulator, like the runtime, is set up
once in a process; LD_LIBRARY_PATH must lead to its libraries.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import ExecutionOptions, Timings
from opferry.core.tensors import from_array
from opferry.operators.call import Call, check_contract
from opferry_server.backends.aclnn.backend import AclnnBackend
from opferry_server.backends.base import BackendSettings
from tests.support import servers, simulator
from tests.support.calls import GRAD, Subject

Arrays = Mapping[str, NDArray[Any]]


def known_call(subject: Subject = GRAD, **options: Any) -> tuple[Call, Arrays]:
    """Return an operator's known-answer case as a call, and its inputs.

    Args:
        subject: the operator.
        options: fields of ExecutionOptions.
    """
    arrays, attributes = subject.operator.known_answer_case()
    specs = {name: from_array(name, array).spec for name, array in arrays.items()}
    return Call(subject.operator, attributes, specs, ExecutionOptions(**options)), arrays


def run(backend: AclnnBackend, call: Call, arrays: Arrays) -> tuple[Arrays, Timings]:
    """Run a call and return its outputs and what it took."""
    outputs = {
        name: np.empty(spec.shape, spec.dtype.numpy)
        for name, spec in check_contract(call).outputs.items()
    }
    return outputs, backend.execute(call, arrays, outputs)


def is_right(outputs: Arrays, arrays: Arrays, call: Call) -> bool:
    """Return whether outputs are the reference's, bit for bit (the known-answer case is exact)."""
    plan = call.operator.check(call.inputs, call.attributes)
    golden = call.operator.reference(arrays, plan)
    return all(outputs[name].tobytes() == golden[name].tobytes() for name in golden)


class Simulator:
    """The simulator's own calls, in the process in which the backend runs."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libascendcl.so")
        self._library.opferrySimCounter.restype = ctypes.c_int64
        self._library.opferrySimViolation.restype = ctypes.c_char_p
        self._library.opferrySimViolation.argtypes = (ctypes.c_int64,)

    def counter(self, name: str) -> int:
        """Return a counter by its name."""
        value: int = self._library.opferrySimCounter(name.encode())
        assert value >= 0, name
        return value

    def violations(self) -> list[str]:
        """Return what was done wrong so far."""
        count = self.counter("violations")
        return [self._library.opferrySimViolation(index).decode() for index in range(count)]

    def inject(self, rules: str) -> None:
        """Add fault rules."""
        assert self._library.opferrySimInject(rules.encode()) == 0, rules


def open_backend(**settings: Any) -> AclnnBackend:
    """Open the backend on the simulator.

    Args:
        settings: fields of BackendSettings.
    """
    return AclnnBackend(BackendSettings(**{"lock_folder": "", **settings}))


def start(
    module: str,
    *arguments: str,
    before: Sequence[str] = (),
    timeout_s: float = 100,
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests as a program, on the simulator.

    Args:
        module: its name.
        arguments: the program's arguments.
        before: a command that runs the interpreter.
        timeout_s: how long it may take.
        settings: variables, without their prefix OPFERRY_SIM_, in lower case.
    """
    environment = {**os.environ, **simulator.environment(**settings)}
    environment["PYTHONPATH"] = servers.PYTHONPATH
    environment["PYTHONMALLOC"] = "malloc" if before else ""
    return subprocess.run(
        [*before, sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=servers.ROOT,
        timeout=timeout_s,
    )
