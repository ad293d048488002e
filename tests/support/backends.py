"""Backends for tests, given to the server by import path. Nothing of the product names them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import OperatorPackage, Timings
from opferry.core.problems import Problem, Reason
from opferry.operators import OPERATORS
from opferry.operators.call import Call
from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.backends.cpu import CpuBackend

Arrays = Mapping[str, NDArray[Any]]

PATH = __name__
"""What stands before the colon in this module's backends' import paths."""


LONG_SLEEP_S = 30.0
"""From here on a sleeper says who it is."""


class CustomBackend(CpuBackend):
    """The CPU reference as if it were somebody's own build, so that it may be wrong."""

    def info(self) -> BackendInfo:
        package = OperatorPackage(self.settings.package)
        return replace(super().info(), operator_package=package, may_be_wrong=tuple(OPERATORS))


class MoodyBackend(CustomBackend):
    """Honest in the known-answer case, so that it gets ready; then as `act` has it."""

    def execute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        known, _ = call.operator.known_answer_case()
        if all(np.array_equal(known[name], array) for name, array in inputs.items()):
            return super().execute(call, inputs, outputs)
        return self.act(call, inputs, outputs)

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        raise NotImplementedError

    def compute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        return super().execute(call, inputs, outputs)


class SleepBackend(MoodyBackend):
    """Sleeps as many seconds as the first element of cos says, then computes.

    One that sleeps long first writes its process id to the file that OPFERRY_TEST_SLEEPER names.
    """

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        seconds = float(inputs["cos"].flat[0])
        if seconds >= LONG_SLEEP_S and (file := os.environ.get("OPFERRY_TEST_SLEEPER")):
            Path(file).write_text(f"{os.getpid()}\n")
        time.sleep(seconds)
        return self.compute(call, inputs, outputs)


def crash_if_negative(inputs: Arrays) -> None:
    """End this process by a signal, if the first element of cos is its number, negative."""
    number = int(inputs["cos"].flat[0])
    if number < 0:
        os.kill(os.getpid(), -number)
        signal.pause()


class CrashBackend(MoodyBackend):
    """Ends its own process if the first element of cos is negative: by that signal's number."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        crash_if_negative(inputs)
        return self.compute(call, inputs, outputs)


class CrashOrSleepBackend(SleepBackend):
    """As `CrashBackend` if the first element of cos is negative, else as `SleepBackend`."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        crash_if_negative(inputs)
        return super().act(call, inputs, outputs)


class LongErrorBackend(MoodyBackend):
    """Fails with about 20 KB of Chinese text."""

    TEXT = "算子执行失败, 张量形状不匹配. " * 440

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        raise Problem(Reason.OPERATOR_FAILED, self.TEXT, aclnn_status=561002, stage="stage_one")


class DefectBackend(MoodyBackend):
    """Raises what nobody expected."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        raise ZeroDivisionError("a defect of the backend")


class IdleBackend(MoodyBackend):
    """Writes nothing to its outputs and says that it may not."""

    writes_every_output = False

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        return Timings(kernel_ns=(0,))


class NeverOpens(CustomBackend):
    """Cannot be opened."""

    def __init__(self, settings: BackendSettings) -> None:
        raise RuntimeError("the device is made of cheese")


class SinSignFlipped(CustomBackend):
    """A classic mistake: the sign of sin."""

    def execute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        return super().execute(call, {**inputs, "sin": -inputs["sin"]}, outputs)


class HalvesSwapped(CustomBackend):
    """A classic mistake: the halves of cos and sin the other way round."""

    def execute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        swapped = {
            name: np.roll(array, array.shape[-1] // 2, axis=-1) if name in ("cos", "sin") else array
            for name, array in inputs.items()
        }
        return super().execute(call, swapped, outputs)


class OneElementOff(CustomBackend):
    """One element of the key's output is off by ten times the largest floor of any standard."""

    def execute(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = super().execute(call, inputs, outputs)
        (name,) = [name for name in outputs if "key" in name]
        element = outputs[name].reshape(-1)[-1:]
        element[...] = 10.0 if not np.isfinite(element).all() else element + 10.0
        return timings
