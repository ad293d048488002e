"""One row of a case file to a `Case`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opferry.core.problems import ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_NULLPTR, Problem
from opferry.core.tensors import TensorSpec
from opferry.operators import operator_named
from opferry.operators.base import Operator
from opferry.validation import _cells
from opferry.validation._batch_cells import batch_slice
from opferry.validation._named_files import golden_files, input_files
from opferry.validation._row import Row
from opferry.validation._tensor_list import TensorList
from opferry.validation.case import Case, Tolerance
from opferry.validation.literals import shown
from opferry.validation.problems import CaseFileError, CellError
from opferry.validation.ranges import ValueRange

REQUIRED_COLUMNS = ("testcase_name", "api_name", "tensor_view_shapes", "tensor_dtypes")
"""The columns that a file must have."""

STORAGE_COLUMNS = ("tensor_storage_shapes", "tensor_stroage_shapes")
"""The two spellings under which the storage shapes are published."""

EXPECTED_STATUS = "expected_status"
"""The column, our own, of the status with which a row is to be refused."""

NOT_SERVED: Mapping[str, str] = {
    "golden_api": "another golden is not served; the operator's own reference is used: empty the "
    "cell",
    "inplace_input_indexes": "the function returns new tensors, and no input is changed; empty the "
    "cell",
    "scalar_dtypes": "this operator has no scalar tensors; give attributes and empty the cell",
    "scalar_data_ranges": "this operator has no scalar tensors; give attributes and empty the cell",
}
"""Columns that must be empty, or hold their default, in a row that is to run; and what to do."""


def case_from_row(row: Row) -> Case:
    """Return what a row asks for.

    A row that is to be refused may break the contract with a word for which there is no spec, such
    as a dtype: it becomes a case without inputs that carries the problem.

    Raises:
        CaseFileError: for the first cell that cannot be understood or served.
    """
    with row.column(EXPECTED_STATUS) as column:
        expected_status = _expected_status(row.literal(column))
    with row.column("soc_series") as column:
        soc_series = _cells.soc_series(row.text(column))
    with row.column("priority") as column:
        priority = _cells.priority(row.literal(column))
    try:
        return replace(
            _understood(row),
            expected_status=expected_status,
            soc_series=soc_series,
            priority=priority,
        )
    except CaseFileError as error:
        problem = error.__cause__
        if (
            expected_status is None
            or not isinstance(problem, Problem)
            or problem.aclnn_status is None
        ):
            raise
    return Case(
        row=row.number,
        name=row.text("testcase_name"),
        operator=operator_named(row.text("api_name")),
        attributes=None,
        inputs={},
        ranges={},
        outputs={},
        tolerances={},
        absolute_precision=None,
        normal_distribution=False,
        is_enabled=_cells.flag(row.text("is_enabled"), default=True),
        remark=row.text("remark"),
        columns=row.cells,
        expected_status=expected_status,
        problem=problem,
        soc_series=soc_series,
        priority=priority,
    )


def _expected_status(value: Any) -> int | None:
    allowed = (ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID)
    if value is not None and value not in allowed:
        raise CellError(
            f"is {shown(value)}; give {' or '.join(map(str, allowed))}, or empty the cell of a row "
            "that is to run"
        )
    return value if value is None else int(value)


def _understood(row: Row) -> Case:
    for required in REQUIRED_COLUMNS:
        with row.column(required):
            if not row.text(required):
                raise CellError("is empty; every row needs it")
    with row.column("is_enabled"):
        enabled = _cells.flag(row.text("is_enabled"), default=True)
    with row.column("normal_distribution"):
        normal = _cells.flag(row.text("normal_distribution"), default=False)
    if enabled:
        _refuse_not_served(row)
    with row.column("api_name"):
        operator = operator_named(row.text("api_name"))
    with row.column("tensor_view_shapes") as column:
        tensors = TensorList.of_row(operator, row.literal(column))
    specs = _specs(row, tensors)
    inputs = {
        declared.name: spec
        for declared in operator.inputs
        if (spec := specs[declared.name]) is not None
    }
    outputs = _outputs(row, tensors, specs)
    tolerances, absolute = _tolerances(row, list(outputs))
    return Case(
        row=row.number,
        name=row.text("testcase_name"),
        operator=operator,
        attributes=_attributes(row, operator),
        inputs=inputs,
        ranges=_ranges(row, tensors, inputs),
        outputs=outputs,
        tolerances=tolerances,
        absolute_precision=absolute,
        normal_distribution=normal,
        is_enabled=enabled,
        remark=row.text("remark"),
        columns=row.cells,
        input_files=input_files(row, operator, inputs) if enabled else {},
        golden_files=golden_files(row, outputs) if enabled else {},
        batch=batch_slice(row, operator, inputs) if enabled else None,
    )


def _refuse_not_served(row: Row) -> None:
    for name, instead in NOT_SERVED.items():
        if name not in row.cells:
            continue
        with row.column(name):
            if not row.asks_nothing(name):
                raise CellError(f"is {shown(row.text(name))}; {instead}")


def _specs(row: Row, tensors: TensorList) -> dict[str, TensorSpec | None]:
    """Return the spec of each tensor; None where absent."""
    count = len(tensors.names)
    with row.column("tensor_view_shapes") as column:
        shapes = _cells.shapes(row.literal(column), count)
    with row.column("tensor_dtypes") as column:
        dtypes = _cells.dtypes(row.literal(column), shapes, tensors.names)
    with row.column("tensor_formats") as column:
        _cells.formats(row.literal(column), count)
    storage_column = next((name for name in STORAGE_COLUMNS if name in row.cells), "")
    with row.column(storage_column) as column:
        storages = _cells.integer_tuples(row.literal(column), count, "storage shape")
    with row.column("tensor_view_strides") as column:
        strides = _cells.integer_tuples(row.literal(column), count, "tuple of strides")
    with row.column("tensor_view_offsets") as column:
        offsets = _cells.offsets(row.literal(column), count)
    return {
        name: None
        if shape is None or dtype is None
        else TensorSpec(dtype, shape, step, offset, storage)
        for name, shape, dtype, step, offset, storage in zip(
            tensors.names, shapes, dtypes, strides, offsets, storages, strict=True
        )
    }


def _outputs(
    row: Row, tensors: TensorList, specs: Mapping[str, TensorSpec | None]
) -> dict[str, TensorSpec | None]:
    """Return the outputs that a row lists; without a list, those with a shape, or else all."""
    with row.column("output_inplace_indexes") as column:
        if not row.asks_nothing(column):
            tensors.check_in_place(row.literal(column))
    with row.column("output_tensor_indexes") as column:
        names = tensors.listed(row.literal(column))
    found = {name: specs[tensors.names[at]] for name, at in tensors.outputs.items()}
    if names is None:
        with_shape = [name for name, spec in found.items() if spec is not None]
        names = with_shape or list(found)
    for name, at in tensors.outputs.items():
        spec = found[name]
        if at in tensors.overwritten and spec is not None:
            # the view is the input's; what comes back of it is compact
            found[name] = TensorSpec(spec.dtype, spec.shape)
    with row.column("tensor_view_strides"):
        for name in names:
            spec = found[name]
            # strides of another rank than the shape have no meaning that could be asked for
            if spec is not None and not (
                len(spec.full_strides) == len(spec.shape) and spec.is_contiguous
            ):
                raise CellError(
                    f"makes {name} non-contiguous, with its storage shape and offset; outputs are "
                    "contiguous"
                )
    return {name: found[name] for name in names}


def _ranges(
    row: Row, tensors: TensorList, inputs: Mapping[str, TensorSpec]
) -> dict[str, ValueRange]:
    with row.column("input_data_ranges") as column:
        found = _cells.entries(row.literal(column), len(tensors.names), "tensors")
        ranges = [ValueRange.parse(entry) for entry in found]
    return {
        name: found for name, found in zip(tensors.names, ranges, strict=True) if name in inputs
    }


def _attributes(row: Row, operator: Operator) -> Any:
    with row.column("attributes") as column:
        given = row.literal(column)
        if given in _cells.ASKS_NOTHING:
            given = {}
        if not isinstance(given, Mapping):
            raise CellError(f"is {shown(given)}; give a dict of names and values")
        return operator.parse_attributes(given)


def _tolerances(row: Row, names: Sequence[str]) -> tuple[dict[str, Tolerance], float | None]:
    with row.column("precision_tolerances") as column:
        found = _cells.tolerances(row.literal(column), names)
    with row.column("absolute_precision") as column:
        value = row.literal(column)
        absolute = _cells.absolute_tolerances(value, names)
    common = None if isinstance(value, tuple) or not absolute else absolute[0]
    return {
        name: replace(found[name], atol=atol) for name, atol in zip(names, absolute, strict=True)
    }, common
