"""One generated row, and its cells as TTK writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator

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

EXPECTED_STATUS = "expected_status"
"""The column that a suite of negative cases has beside them."""

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
        inputs = [self.inputs.get(declared.name) for declared in operator.inputs]
        # published files give shapes to the outputs that are suppressed as well
        likes = [self.inputs.get(output.like) for output in operator.outputs]
        outputs = [None if spec is None else TensorSpec(spec.dtype, spec.shape) for spec in likes]
        specs = [*inputs, *outputs]
        words = [
            None if spec is None else repr(self.dtype_words.get(name, spec.dtype.value))
            for name, spec in zip(self._names(), specs, strict=True)
        ]
        cells = {
            "testcase_name": self.name,
            "api_name": f"aclnn{operator.name}"
            if kind == ACLNN
            else f"torch.ops.cann_ops_transformer.{operator.python_name}",
            "tensor_view_shapes": _tuple(spec and _numbers(spec.shape) for spec in specs),
            "tensor_dtypes": _tuple(words),
            "tensor_formats": _tuple(spec and "'ND'" for spec in specs),
            "attributes": self._attributes(kind),
            "output_tensor_indexes": _numbers(range(len(inputs), len(specs))),
            "precision_tolerances": _tuple([TOLERANCES] * len(outputs)),
            "absolute_precision": "1e-05",
            "remark": self.remark,
        }
        if any(spec is not None and spec.strides is not None for spec in inputs):
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
                for name, spec in zip(self._names(), specs, strict=True)
            )
        if self.normal:
            cells["normal_distribution"] = "True"
        if self.expected_status is not None:
            cells[EXPECTED_STATUS] = str(self.expected_status)
        return cells

    def _names(self) -> Iterable[str]:
        return (*(i.name for i in self.operator.inputs), *(o.name for o in self.operator.outputs))

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
