"""Which tensors a row lists, and where among them each output is.

A file for aclnn lists the tensors of the C function. One that an operator overwrites is there once,
as the input and as the output. A file for PyTorch lists inputs and outputs, and so do files for
aclnn of operators that overwrite nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opferry.operators.base import Operator
from opferry.validation._cells import ASKS_NOTHING
from opferry.validation.literals import shown
from opferry.validation.problems import CellError


class TensorList(NamedTuple):
    """The tensors of a row, in its order."""

    operator: Operator
    """The row's operator."""
    names: tuple[str, ...]
    """Inputs, then the outputs that have a tensor of their own."""
    outputs: Mapping[str, int]
    """The position of each output."""

    @classmethod
    def of(cls, operator: Operator, *, in_place: bool) -> TensorList:
        """Return the tensors of an operator.

        Args:
            operator: the operator.
            in_place: whether outputs lie where the operator's aclnn function writes them.
        """
        names = [declared.name for declared in operator.inputs]
        positions = {}
        for output in operator.outputs:
            if in_place and output.overwrites:
                positions[output.name] = names.index(output.overwrites)
            else:
                positions[output.name] = len(names)
                names.append(output.name)
        return cls(operator, tuple(names), positions)

    @classmethod
    def of_row(cls, operator: Operator, shapes: Any) -> TensorList:
        """Return the tensors of a row; without tensors for them, outputs lie over inputs.

        Args:
            operator: the row's operator.
            shapes: the value of tensor_view_shapes.

        Raises:
            CellError: if there are more tensors than the operator has.
        """
        few, many = (cls.of(operator, in_place=in_place) for in_place in (True, False))
        count = len(shapes) if isinstance(shapes, tuple) else 0
        if count > len(many.names):
            raise CellError(
                f"has {count} tensors; {operator.name} has {len(operator.inputs)} inputs and "
                f"{len(operator.outputs)} outputs"
            )
        return many if count > len(few.names) else few

    @property
    def overwritten(self) -> tuple[int, ...]:
        """The positions of inputs that are outputs, too."""
        count = len(self.operator.inputs)
        return tuple(position for position in self.outputs.values() if position < count)

    def listed(self, value: Any) -> list[str] | None:
        """Return the outputs of output_tensor_indexes; None: it says nothing.

        Raises:
            CellError: for a position that is no output's, or is there twice.
        """
        if value in ASKS_NOTHING:
            return None
        names = {position: name for name, position in self.outputs.items()}
        found: list[str] = []
        for index in value if isinstance(value, tuple) else (value,):
            if type(index) is not int or index not in names:
                allowed = ", ".join(f"{position} {name}" for position, name in names.items())
                raise CellError(f"has {shown(index)}; the outputs are {allowed}")
            if names[index] in found:
                raise CellError(f"has {index} twice")
            found.append(names[index])
        return found

    def check_in_place(self, value: Any) -> None:
        """Check output_inplace_indexes, which TTK itself fills in where it is empty.

        Raises:
            CellError: for a position that is not of a tensor which is overwritten.
        """
        for index in value if isinstance(value, tuple) else (value,):
            if type(index) is not int or index not in self.overwritten:
                allowed = ", ".join(map(str, self.overwritten))
                raise CellError(
                    f"has {shown(index)}; "
                    + (
                        f"the tensors that are overwritten are {allowed}"
                        if allowed
                        else "no output of this row is written over an input; empty the cell"
                    )
                )
