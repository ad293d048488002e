"""The CPU reference as a backend: the definition of what every other backend must answer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from time import perf_counter_ns
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import Timings
from opferry.core.problems import Problem
from opferry.operators import OPERATORS
from opferry.operators.call import Call
from opferry_server.backends.base import Backend, BackendInfo, BackendSettings

REASON_CHARACTERS = 120
"""How much of the reason is shown why the reference is not compiled."""


class CpuBackend(Backend):
    """Runs operators' references on the CPU, one request at a time."""

    writes_every_output: ClassVar[bool] = True

    def __init__(self, settings: BackendSettings) -> None:
        """Compile the references, unless *settings* want the plain one."""
        super().__init__(settings)
        self._plain_because = ""
        self._versions = {"numpy": np.__version__}
        if settings.reference_kernel == "auto":
            self._compile()

    def _compile(self) -> None:
        try:
            for operator in OPERATORS.values():
                operator.compile_reference(self.settings.thread_count)
            if self.settings.judge:
                from opferry.validation.inputs import compile_generator

                compile_generator()
            self._versions["numba"] = version("numba")
        except Exception as error:
            # no numba, one that does not know this numpy, a processor that it does not know
            why = " ".join(str(error).split())[:REASON_CHARACTERS]
            self._plain_because = f" ({type(error).__name__}: {why})"

    def info(self) -> BackendInfo:
        """Say what this backend is."""
        kernels = dict.fromkeys(operator.reference_kernel for operator in OPERATORS.values())
        return BackendInfo(
            backend="cpu",
            device=f"cpu:{self.settings.device}",
            reference_kernel=", ".join(kernels) + self._plain_because,
            versions=self._versions,
        )

    def execute(
        self, call: Call, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Timings:
        """Check the contract, as the first stage of a device does, then compute."""
        started = perf_counter_ns()
        try:
            plan = call.operator.check(call.inputs, call.attributes)
        except Problem as problem:
            problem.stage = "stage_one"
            raise
        stage_one_ns = perf_counter_ns() - started
        for _ in range(call.options.warmup):
            call.operator.reference(inputs, plan, outputs=outputs)
        kernel_ns = []
        for _ in range(call.options.repeat):
            started = perf_counter_ns()
            call.operator.reference(inputs, plan, outputs=outputs)
            kernel_ns.append(perf_counter_ns() - started)
        return Timings(stage_one_ns=stage_one_ns, kernel_ns=tuple(kernel_ns))
