"""A backend for benchmarks, given to the server by import path."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import OperatorPackage, Timings
from opferry.operators.call import Call
from opferry_server.backends.base import Backend, BackendInfo

OPERATOR = "ApplyRotaryPosEmbGrad"


class EchoBackend(Backend):
    """Answers ApplyRotaryPosEmbGrad without query and key by its gradients: dq = gq, dk = gk."""

    writes_every_output = True

    def info(self) -> BackendInfo:
        """Say what this is; its answers are wrong, and may be."""
        package = OperatorPackage(self.settings.package)
        return BackendInfo(
            "echo",
            "cpu:0",
            operator_package=package,
            operators=(OPERATOR,),
            may_be_wrong=(OPERATOR,),
        )

    def execute(
        self, call: Call, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
    ) -> Timings:
        """Copy."""
        started = perf_counter_ns()
        for output, like in (("grad_query", "grad_query_embed"), ("grad_key", "grad_key_embed")):
            np.copyto(outputs[output], inputs[like])
        return Timings(kernel_ns=(perf_counter_ns() - started,))
