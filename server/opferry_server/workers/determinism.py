"""Runs of a backend, and that all of them give the same bits where this is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry.core.execution import Timings
from opferry.core.problems import Problem, Reason
from opferry.operators.call import Call
from opferry_server.backends.base import Backend

BLOCK_BYTES = 4096
"""Outputs are compared by the digests of such blocks: a second copy of them may not fit."""

Arrays = Mapping[str, NDArray[Any]]


def execute(backend: Backend, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
    """Run an operator as `Backend.execute` does; if all runs must be alike, one by one.

    Raises:
        Problem: NOT_DETERMINISTIC, naming the output, the run and where it differs; or what the
            backend raises.
    """
    if not call.options.deterministic:
        return backend.execute(call, inputs, outputs)
    options = replace(call.options, repeat=1)
    timings = [backend.execute(replace(call, options=options), inputs, outputs)]
    first = {name: _digests(array) for name, array in outputs.items()}
    options = replace(options, warmup=0)
    for run in range(2, call.options.repeat + 1):
        timings.append(backend.execute(replace(call, options=options), inputs, outputs))
        for name, array in outputs.items():
            found = _digests(array)
            if found != first[name]:
                raise _differs(name, array, run, first[name], found)
    kernel_ns = tuple(ns for timing in timings for ns in timing.kernel_ns)
    return replace(timings[-1], kernel_ns=kernel_ns)


def _digests(array: NDArray[Any]) -> list[int]:
    data = array.reshape(-1).view(np.uint8).data
    blocks = range(0, data.nbytes, BLOCK_BYTES)
    return [xxhash.xxh3_64_intdigest(data[at : at + BLOCK_BYTES]) for at in blocks]


def _differs(
    name: str, array: NDArray[Any], run: int, first: list[int], found: list[int]
) -> Problem:
    blocks = [at for at, digest in enumerate(found) if digest != first[at]]
    step = BLOCK_BYTES // array.itemsize
    begin, end = blocks[0] * step, min((blocks[0] + 1) * step, array.size)
    return Problem(
        Reason.NOT_DETERMINISTIC,
        f"{name}: run {run} gave other bits than run 1, in {len(blocks)} of {len(found)} blocks "
        f"of {step} elements, the first between elements {begin} and {end} in C order",
        argument=name,
        stage="copy_out",
    )
