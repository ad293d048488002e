"""What the rotary operators share: their attributes, and a reference that may be compiled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout, RotaryMode, layout_number
from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, Problem, Reason
from opferry.operators._rotary_blocks import Array, as_bsnd
from opferry.operators.base import Operator, Plan

Arrays = Mapping[str, Array]

Fused = Callable[[Arrays, Arrays, Any], bool]
"""Fills outputs from inputs, all (B, S, N, D), by the attributes; returns whether it can, with such
strides."""


class RotaryOperator(Operator):
    """A rotary operator, whose attributes have the fields rotary_mode and layout."""

    attributes_class: ClassVar[type[Any]]
    """The class of its attributes, made of rotary_mode and the layout's number."""
    layout_aliases: ClassVar[Mapping[str, Layout]] = {}
    """Further names of layouts that users may give."""
    modes: ClassVar[Sequence[RotaryMode]]
    """The modes that its reference computes."""

    _fused: Fused | None = None

    def parse_attributes(self, given: Mapping[str, Any]) -> Any:
        """Return the attributes; a rotary_mode of None means "half", a layout of None means 1."""
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in self.attribute_names:
                raise self.unknown_attribute(name)
            meant = self.attribute_names[name]
            if meant in values and value is not None and values[meant] != value:
                raise self.given_twice(name)
            if value is not None:
                values[meant] = value
        mode = values.get("rotary_mode", RotaryMode.HALF.value)
        if not isinstance(mode, str):
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                f"rotary_mode is a {type(mode).__name__}; give a word, such as half",
                argument="rotary_mode",
                given=repr(mode)[:40],
                aclnn_status=ACLNN_ERR_PARAM_INVALID,
            )
        # an Enum's own text is its class and name; a plain word is wanted
        word = mode.value if isinstance(mode, RotaryMode) else mode
        number = layout_number(values.get("layout", 1), self.layout_aliases)
        return self.attributes_class(word, number)

    def reference(
        self,
        arrays: Mapping[str, NDArray[Any]],
        plan: Plan,
        *,
        outputs: Mapping[str, NDArray[Any]] | None = None,
        promote: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Compute in float32 whatever the dtype, with one rounding to the dtype at the end."""
        results = {
            name: np.empty(spec.shape, np.float64 if promote else spec.dtype.numpy)
            if outputs is None
            else outputs[name]
            for name, spec in plan.outputs.items()
        }
        layout = Layout(plan.attributes.layout)
        inputs = {name: as_bsnd(arrays[name], layout) for name in plan.inputs}
        targets = {name: as_bsnd(array, layout) for name, array in results.items()}
        if promote:
            self.compute(inputs, targets, plan.attributes, np.float64)
        elif self._fused is None or not self._fused(inputs, targets, plan.attributes):
            self.compute(inputs, targets, plan.attributes, np.float32)
        return results

    @abstractmethod
    def compute(self, inputs: Arrays, outputs: Arrays, attributes: Any, work: Any) -> None:
        """Fill outputs from inputs, all (B, S, N, D), with arithmetic of the type *work*."""

    @abstractmethod
    def fused(self, thread_count: int) -> Fused:
        """Return compiled loops that give the bits of `compute`.

        Raises:
            Exception: whatever keeps them from being compiled.
        """

    def compile_reference(self, thread_count: int) -> None:
        """Take the fused loops, whose results have the same bits."""
        fused = self.fused(thread_count)
        self._check_bits(fused)
        self._fused = fused
        self.reference_kernel = "numba-fused"

    def _check_bits(self, fused: Fused) -> None:
        """Check that compiled code does here what it is to do.

        Raises:
            ArithmeticError: if it does not; it must not be used then.
        """
        arrays, attributes = self.known_answer_case()
        for mode in self.modes:
            given = replace(attributes, rotary_mode=mode.value)
            for dtype in DType:
                inputs = {name: array.astype(dtype.numpy) for name, array in arrays.items()}
                found, wanted = (
                    {output.name: np.zeros_like(inputs[output.like]) for output in self.outputs}
                    for _ in range(2)
                )
                self.compute(inputs, wanted, given, np.float32)
                if not fused(inputs, found, given) or any(
                    found[name].tobytes() != wanted[name].tobytes() for name in wanted
                ):
                    raise ArithmeticError(
                        f"compiled for this processor, {dtype.value} comes out wrong"
                    )


def ramps(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Return float32 arrays of eighths between -2 and 2 that do not repeat with any axis."""
    arrays = {}
    for position, (name, shape) in enumerate(shapes.items()):
        steps = (np.arange(int(np.prod(shape))) * 7 + position * 5) % 33 - 16
        arrays[name] = (steps / 8).astype(np.float32).reshape(shape)
    return arrays
