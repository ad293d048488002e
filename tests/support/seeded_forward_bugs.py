"""The CPU reference with the classic mistakes of the forward, as backends by import path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opferry.core.execution import Timings
from opferry.operators.call import Call
from tests.support.backends import Arrays, MoodyBackend


class ModeIgnored(MoodyBackend):
    """Elements are paired up as in half, whatever the mode."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        plain = replace(call.attributes, rotary_mode="half")
        return self.compute(replace(call, attributes=plain), inputs, outputs)


class HalvesTakenForEqual(MoodyBackend):
    """The second half of cos and sin is taken to be what the first is."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        half = inputs["cos"].shape[-1] // 2
        doubled = {
            name: np.concatenate([inputs[name][..., :half]] * 2, axis=-1) for name in ("cos", "sin")
        }
        return self.compute(call, {**inputs, **doubled}, outputs)


class TailDropped(MoodyBackend):
    """What cos does not reach is zeros instead of the input."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        for output in outputs.values():
            output[..., inputs["cos"].shape[-1] :] = 0
        return timings
