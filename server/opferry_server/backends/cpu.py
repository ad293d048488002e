"""The CPU reference as a backend: the definition of what every other backend must answer."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import Timings
from opferry.core.problems import Problem
from opferry.operators.call import Call
from opferry_server.backends.base import Backend, BackendInfo


class CpuBackend(Backend):
    """Runs operators' references on the CPU, one request at a time."""

    writes_every_output: ClassVar[bool] = True

    def info(self) -> BackendInfo:
        """Say what this backend is."""
        return BackendInfo(
            backend="cpu",
            device=f"cpu:{self.settings.device}",
            reference_kernel="numpy-blocked",
            versions={"numpy": np.__version__},
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
