"""What an operator is: its tensors and attributes, its contract, its plan and its reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from opferry.core.execution import OperatorPackage
from opferry.core.problems import ACLNN_ERR_PARAM_NULLPTR, Problem, Reason
from opferry.core.tensors import TensorSpec

Shape = tuple[int, ...]
"""The extents of a tensor. In shape inference -1 is an unknown extent, (-2,) an unknown rank."""

UNKNOWN_RANK: Shape = (-2,)
"""The shape of which not even the number of axes is known."""


@dataclass(frozen=True)
class InputSpec:
    """One input of an operator."""

    name: str
    """The operator's own parameter name."""
    optional: bool = False
    """Whether it may be absent."""
    like: str = ""
    """An input of whose shape it is in simple calls, for who gives no shape of its own."""


@dataclass(frozen=True)
class OutputSpec:
    """One output of an operator."""

    name: str
    """The output's name."""
    short_name: str
    """The name by which users know it, for example "dq"."""
    like: str
    """The input whose shape and dtype it takes."""
    requires: tuple[str, ...] = ()
    """The optional inputs without which it is not computed."""
    overwrites: str = ""
    """The input in whose place the aclnn function writes it; "": it has a tensor of its own."""


@dataclass(frozen=True)
class Plan:
    """What a call that passed the contract takes and gives."""

    operator: Operator
    """The operator."""
    attributes: Any
    """The operator's attributes."""
    inputs: Mapping[str, TensorSpec]
    """The inputs that are present, in the operator's order."""
    outputs: Mapping[str, TensorSpec]
    """The outputs that will be computed, in the operator's order; contiguous."""
    broadcast_axes: tuple[int, ...]
    """The axes over which gradients of broadcast inputs are summed."""
    template: str
    """The kernel template that the vendor's tiling would choose."""
    tiling_key: int
    """The tiling key of that template."""
    workspace_bytes: int
    """The lower bound of the device workspace by the vendor's formula."""
    device_workspace_bytes: int | None = None
    """The workspace that a device's own first stage asked for; None where none was asked."""
    operator_package: OperatorPackage | None = None
    """The operator package that was asked; None for a plan by the contract alone."""

    @property
    def input_bytes(self) -> int:
        """The size of all inputs' storages in bytes."""
        return sum(spec.data_bytes for spec in self.inputs.values())

    @property
    def output_bytes(self) -> int:
        """The size of all outputs in bytes."""
        return sum(spec.data_bytes for spec in self.outputs.values())

    @property
    def total_bytes(self) -> int:
        """Inputs, outputs and workspace together, in bytes: what limits count."""
        return self.input_bytes + self.output_bytes + self.workspace_bytes


class Operator(ABC):
    """One operator. A module of this package subclasses it once and puts the instance in the table.

    Arrays and specs are numpy's and `opferry.core`'s; nothing here knows protobuf or gRPC.
    """

    name: str
    """The CANN name, for example "ApplyRotaryPosEmbGrad"."""
    python_name: str
    """The name in Python and in the schema, for example "apply_rotary_pos_emb_grad"."""
    aclnn_suffix: str = ""
    """What the name of its aclnn function has behind the operator's, for example "V2"."""
    inputs: tuple[InputSpec, ...]
    """The inputs in the order of the aclnn call."""
    outputs: tuple[OutputSpec, ...]
    """The outputs in the order of the aclnn call."""
    reference_kernel = "numpy-blocked"
    """Which implementation `reference` runs; `compile_reference` may change it."""
    attribute_names: ClassVar[Mapping[str, str]]
    """Every accepted spelling of an attribute (Python and C) to the Python name."""

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    @property
    def aclnn_name(self) -> str:
        """The name of its aclnn function, without the first stage's GetWorkspaceSize."""
        return f"aclnn{self.name}{self.aclnn_suffix}"

    @abstractmethod
    def parse_attributes(self, given: Mapping[str, Any]) -> Any:
        """Return the operator's attributes from names and values as users write them.

        Raises:
            Problem: ATTRIBUTE_INVALID for an unknown name or a value of the wrong type.
        """

    @abstractmethod
    def check(self, specs: Mapping[str, TensorSpec], attributes: Any) -> Plan:
        """Check a call against the contract, in the device's order, and return its plan.

        Args:
            specs: the inputs by name; absent ones are left out.
            attributes: what `parse_attributes` returned.

        Raises:
            Problem: the first rule that is broken, with argument, given, allowed and aclnn_status.
        """

    @abstractmethod
    def reference(
        self,
        arrays: Mapping[str, NDArray[Any]],
        plan: Plan,
        *,
        outputs: Mapping[str, NDArray[Any]] | None = None,
        promote: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Compute the outputs on the CPU by the documented formula.

        Args:
            arrays: the inputs by name, of the shapes and dtypes of plan.inputs; any strides.
            plan: what `check` returned.
            outputs: arrays to write to, of the shapes and dtypes of plan.outputs; made if None.
            promote: compute in float64 and return float64, unrounded; *outputs*, if given, are
                then of float64.

        Returns:
            The outputs by name, in the operator's order.
        """

    def compile_reference(self, thread_count: int) -> None:  # noqa: B027 - it need not be faster
        """Let `reference` run in machine code from now on, if the operator has such code.

        Args:
            thread_count: how many threads it may use; its results do not depend on it.

        Raises:
            Exception: whatever keeps it from being compiled; `reference` is as it was then.
        """

    @abstractmethod
    def known_answer_case(self) -> tuple[dict[str, NDArray[Any]], Any]:
        """Return inputs by name, and attributes, of a small call in which much can go wrong.

        A worker runs it before it counts as ready, and compares with `reference`.
        """

    def unknown_attribute(self, name: str) -> Problem:
        """Return the problem of an attribute that the operator does not have."""
        allowed = ", ".join(sorted(self.attribute_names))
        return Problem(
            Reason.ATTRIBUTE_INVALID,
            f"attribute {name[:40]!r} is unknown to {self.name}; known are {allowed}",
            argument=name[:40],
            given=name[:40],
            allowed=allowed,
        )

    def given_twice(self, name: str) -> Problem:
        """Return the problem of an attribute whose spellings are given with different values."""
        meant = self.attribute_names[name]
        spellings = sorted(word for word, other in self.attribute_names.items() if other == meant)
        return Problem(
            Reason.ATTRIBUTE_INVALID,
            f"{' and '.join(spellings)} are one attribute and differ; give it once",
            argument=meant,
        )

    def check_present(self, names: Mapping[str, Any]) -> None:
        """Check that all required inputs and no unknown ones are there.

        Raises:
            Problem: INPUT_MISSING (161001) or INPUT_UNKNOWN, naming the input.
        """
        for spec in self.inputs:
            if not spec.optional and spec.name not in names:
                raise Problem(
                    Reason.INPUT_MISSING,
                    f"{spec.name} is missing; {self.name} requires it",
                    argument=spec.name,
                    aclnn_status=ACLNN_ERR_PARAM_NULLPTR,
                )
        known = [spec.name for spec in self.inputs]
        for name in names:
            if name not in known:
                raise Problem(
                    Reason.INPUT_UNKNOWN,
                    f"input {name[:40]!r} is unknown to {self.name}; known are {', '.join(known)}",
                    argument=name[:40],
                    allowed=", ".join(known),
                )

    def ordered(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return inputs that are present in the operator's order; others are left out."""
        return {spec.name: named[spec.name] for spec in self.inputs if spec.name in named}

    def present_outputs(self, names: Mapping[str, Any]) -> tuple[OutputSpec, ...]:
        """Return the outputs that are computed when the named inputs are present."""
        return tuple(
            output
            for output in self.outputs
            if output.like in names and all(name in names for name in output.requires)
        )

    def infer_specs(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the outputs' specs for inputs that need not satisfy the contract."""
        return {
            output.name: TensorSpec(specs[output.like].dtype, specs[output.like].shape)
            for output in self.present_outputs(specs)
        }

    def infer_shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the outputs' shapes; unknown extents (-1) and ranks ((-2,)) pass through.

        Args:
            shapes: the shapes of the inputs that are present, by name.
        """
        return {output.name: shapes[output.like] for output in self.present_outputs(shapes)}
