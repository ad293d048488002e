"""One generated row, and its cells as TTK writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.validation._tensor_list import TensorList

ACLNN, E2E = "aclnn", "e2e"
FORMATS = (ACLNN, E2E)
"""TTK's two kinds of file."""

COLUMNS = (
    *("testcase_name", "api_name", "tensor_view_shapes", "tensor_dtypes", "tensor_formats"),
    *("tensor_storage_shapes", "tensor_view_offsets", "tensor_view_strides", "scalar_dtypes"),
    *("attributes", "output_tensor_indexes", "precision_tolerances", "absolute_precision"),
    *("input_data_ranges", "scalar_data_ranges", "normal_distribution", "remark"),
)
"""The columns of a suite, in the order of published files."""

IN_PLACE = "output_inplace_indexes"
"""The column that files for an operator which overwrites inputs have beside them."""

EXPECTED_STATUS = "expected_status"
"""The column that a suite of negative cases has beside them."""


def columns_of(operator: Operator, kind: str, *, negative: bool) -> list[str]:
    """Return the columns of a file.

    Args:
        operator: whose cases it has.
        kind: one of `FORMATS`.
        negative: whether it has cases that are to be refused.
    """
    columns = list(COLUMNS)
    if _tensors(operator, kind).overwritten:
        columns.insert(columns.index("output_tensor_indexes") + 1, IN_PLACE)
    return [*columns, EXPECTED_STATUS] if negative else columns


def _tensors(operator: Operator, kind: str) -> TensorList:
    return TensorList.of(operator, in_place=kind == ACLNN)


TOLERANCES = "(0.001,0.001,)"
"""What published files say for each output; only the standard `close` uses it."""


@dataclass(frozen=True)
class GeneratedRow:
    """One case of a suite."""

    name: str
    """Unique in the suite."""
    operator: Operator
    """The operator."""
    attributes: Mapping[str, object]
    """The attributes by their Python names."""
    inputs: Mapping[str, TensorSpec]
    """The inputs that are present."""
    remark: str
    """What the case is there for."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """The ranges of values, as literals; without an entry the default range."""
    normal: bool = False
    """Whether the values are to be normally distributed."""
    expected_status: int | None = None
    """The status with which the case is to be refused."""
    dtype_words: Mapping[str, str] = field(default_factory=dict)
    """What stands for the dtypes of inputs in place of those of their specs."""

    def cells(self, kind: str) -> dict[str, str]:
        """Return the cells that are not empty, by column.

        Args:
            kind: one of `FORMATS`.
        """
        operator = self.operator
        tensors = _tensors(operator, kind)
        likes = {output.name: self.inputs.get(output.like) for output in operator.outputs}
        # published files give shapes to the outputs that are suppressed as well
        known = {
            **{
                name: TensorSpec(spec.dtype, spec.shape)
                for name, spec in likes.items()
                if spec is not None
            },
            **self.inputs,
        }
        specs = [known.get(name) for name in tensors.names]
        words = [
            None if spec is None else repr(self.dtype_words.get(name, spec.dtype.value))
            for name, spec in zip(tensors.names, specs, strict=True)
        ]
        cells = {
            "testcase_name": self.name,
            "api_name": operator.aclnn_name
            if kind == ACLNN
            else f"torch.ops.cann_ops_transformer.{operator.python_name}",
            "tensor_view_shapes": _tuple(spec and _numbers(spec.shape) for spec in specs),
            "tensor_dtypes": _tuple(words),
            "tensor_formats": _tuple(spec and "'ND'" for spec in specs),
            "attributes": self._attributes(kind),
            "output_tensor_indexes": _numbers(tensors.outputs.values()),
            "precision_tolerances": _tuple([TOLERANCES] * len(operator.outputs)),
            "absolute_precision": "1e-05",
            "remark": self.remark,
        }
        if tensors.overwritten:
            cells[IN_PLACE] = _numbers(tensors.overwritten)
        if any(spec.strides is not None for spec in self.inputs.values()):
            cells |= {
                "tensor_storage_shapes": _tuple(
                    spec and _numbers(spec.storage_shape or spec.shape) for spec in specs
                ),
                "tensor_view_offsets": _numbers(
                    spec.storage_offset if spec else 0 for spec in specs
                ),
                "tensor_view_strides": _tuple(
                    spec and spec.strides and _numbers(spec.strides) for spec in specs
                ),
            }
        if self.ranges:
            cells["input_data_ranges"] = _tuple(
                self.ranges.get(name) if spec else None
                for name, spec in zip(tensors.names, specs, strict=True)
            )
        if self.normal:
            cells["normal_distribution"] = "True"
        if self.expected_status is not None:
            cells[EXPECTED_STATUS] = str(self.expected_status)
        return cells

    def _attributes(self, kind: str) -> str:
        """Return the attributes by TTK's names: C's in an ACLNN file, Python's in an E2E file."""
        python_names = self.operator.attribute_names
        c_names = {meant: name for name, meant in python_names.items() if name != meant}
        pairs: Sequence[tuple[str, Any]] = [
            (c_names.get(name, name) if kind == ACLNN else name, value)
            for name, value in self.attributes.items()
        ]
        return "{" + ", ".join(f"{name!r}: {value!r}" for name, value in pairs) + "}"


def _tuple(parts: Iterable[object]) -> str:
    return "(" + "".join(f"{part if part else None}," for part in parts) + ")"


def _numbers(numbers: Iterable[int]) -> str:
    return "(" + "".join(f"{number}," for number in numbers) + ")"
