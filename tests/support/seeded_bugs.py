"""The CPU reference with the classic mistakes of this operator, as backends by import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.execution import Timings
from opferry.core.layouts import Layout
from opferry.operators.call import Call
from tests.support.backends import Arrays, MoodyBackend


def batch_first(array: NDArray[Any], call: Call) -> NDArray[Any]:
    """Return a view with the axes (B, S, N, D)."""
    layout = Layout(call.attributes.layout)
    if layout is Layout.TND:
        return array[np.newaxis]
    return array.swapaxes(0, 1) if layout is Layout.SBND else array


class HalvesSwapped(MoodyBackend):
    """The two halves of grad_query stand in each other's place."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        outputs["grad_query"][...] = np.roll(
            outputs["grad_query"], outputs["grad_query"].shape[-1] // 2, axis=-1
        )
        return timings


class SinSign(MoodyBackend):
    """The rotation goes the wrong way: the forward's sign."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        return self.compute(call, {**inputs, "sin": -inputs["sin"]}, outputs)


class HalfPrecision(MoodyBackend):
    """grad_cos and grad_sin are summed in float16."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        if "grad_cos" in outputs:
            with np.errstate(all="ignore"):
                self._sum(call, inputs, outputs)
        return timings

    def _sum(self, call: Call, inputs: Arrays, outputs: Arrays) -> None:
        totals = {name: batch_first(outputs[name], call) for name in ("grad_cos", "grad_sin")}
        for total in totals.values():
            total[...] = 0
        for gradient, value in (("grad_query_embed", "query"), ("grad_key_embed", "key")):
            grad = batch_first(inputs[gradient], call).astype(np.float16)
            x = batch_first(inputs[value], call).astype(np.float16)
            half = x.shape[-1] // 2
            rotated = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
            for name, factor in (("grad_cos", x), ("grad_sin", rotated)):
                total = np.zeros((*grad.shape[:2], 1, grad.shape[-1]), np.float16)
                for head in range(grad.shape[2]):
                    total[:, :, 0] += grad[:, :, head] * factor[:, :, head]
                if totals[name].shape[0] < total.shape[0]:
                    summed = np.zeros_like(total[:1])
                    for batch in range(total.shape[0]):
                        summed += total[batch : batch + 1]
                    total = summed
                totals[name][...] += total.astype(totals[name].dtype)


class FirstBatchOnly(MoodyBackend):
    """Where cos is shared by the batches, grad_cos and grad_sin hold the first batch's sum."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        names = ("grad_query_embed", "grad_key_embed", "query", "key")
        batches = batch_first(inputs["query"], call).shape[0] if "query" in inputs else 1
        if batches == 1 or batch_first(inputs["cos"], call).shape[0] > 1:
            return timings
        axis = 1 if Layout(call.attributes.layout) is Layout.SBND else 0
        part = {name: np.take(inputs[name], [0], axis=axis) for name in names}
        recompute(call, {**inputs, **part}, outputs, ("grad_cos", "grad_sin"))
        return timings


class KeyPartDropped(MoodyBackend):
    """With one query head and more key heads, the keys are missing from grad_cos and grad_sin."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        heads = {name: inputs[name].shape[-2] for name in ("grad_query_embed", "grad_key_embed")}
        if "key" in inputs and heads["grad_query_embed"] == 1 and heads["grad_key_embed"] > 1:
            without = {**inputs, "key": np.zeros_like(inputs["key"])}
            recompute(call, without, outputs, ("grad_cos", "grad_sin"))
        return timings


class LastHeadUnwritten(MoodyBackend):
    """The last head of the key's output is left as the memory was."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        timings = self.compute(call, inputs, outputs)
        (name,) = [name for name in outputs if "key" in name]
        outputs[name][..., -1, :] = -1
        return timings


class TndOffset(MoodyBackend):
    """In layout TND every token after the first is turned by its neighbour's angle."""

    def act(self, call: Call, inputs: Arrays, outputs: Arrays) -> Timings:
        if Layout(call.attributes.layout) is not Layout.TND or inputs["cos"].shape[0] == 1:
            return self.compute(call, inputs, outputs)
        shifted = {
            name: np.concatenate([inputs[name][:1], inputs[name][:-1]]) for name in ("cos", "sin")
        }
        return self.compute(call, {**inputs, **shifted}, outputs)


def recompute(
    call: Call, inputs: Mapping[str, NDArray[Any]], outputs: Arrays, names: tuple[str, ...]
) -> None:
    """Write some outputs anew, of other inputs."""
    from opferry.core.tensors import TensorSpec

    specs = {
        name: TensorSpec(call.inputs[name].dtype, array.shape) for name, array in inputs.items()
    }
    plan = call.operator.check(specs, call.attributes)
    found = call.operator.reference(inputs, plan)
    for name in names:
        outputs[name][...] = found[name]
