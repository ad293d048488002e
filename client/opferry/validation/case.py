"""What one row of a case file asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor, TensorSpec
from opferry.operators.base import Operator
from opferry.validation.batches import BatchSlice
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import Recipe


@dataclass(frozen=True)
class Tolerance:
    """What a row says about one output's precision; only the standard `close` uses it."""

    rtol: float | None = None
    """The error allowed relative to the golden value; None: the standard's default."""
    ptol: float | None = None
    """The share of elements that may miss, 0 to 1; None: the standard's default."""
    atol: float | None = None
    """The absolute error allowed; None: the standard's default."""


@dataclass(frozen=True)
class Case:
    """One row, understood. It need not satisfy the operator's contract: that shows when it runs."""

    row: int
    """The row as a spreadsheet counts it; the header is row 1."""
    name: str
    """testcase_name, without surrounding blanks; unique in its file."""
    operator: Operator
    """The operator that api_name names."""
    attributes: Any
    """The operator's attributes, as `Operator.parse_attributes` returns them."""
    inputs: Mapping[str, TensorSpec]
    """The inputs that are present, by name, in the operator's order."""
    ranges: Mapping[str, ValueRange]
    """The range of values of each input that is present."""
    outputs: Mapping[str, TensorSpec | None]
    """The outputs that the row lists, in the row's order; None where it gives no shape or dtype."""
    tolerances: Mapping[str, Tolerance]
    """The tolerances of each output that the row lists."""
    absolute_precision: float | None
    """The row's absolute tolerance; None if it has none, or one for each output."""
    normal_distribution: bool
    """Whether the inputs are drawn from the normal distribution, else from the uniform one."""
    is_enabled: bool
    """Whether the row is to run."""
    remark: str
    """The row's remark."""
    columns: Mapping[str, str]
    """Every cell as it stands in the file, by column, in the file's order."""
    expected_status: int | None = None
    """The status with which the call is to be refused, 161001 or 161002; None: it is to run."""
    problem: Problem | None = None
    """The rule that a row with an expected status breaks in its very words; it has no inputs."""
    given: Mapping[str, HostTensor | Recipe] = field(default_factory=dict)
    """The inputs that are given as data, or as recipes of their own; the others are made from
    *ranges* and the run's seed."""
    soc_series: tuple[str, ...] = ()
    """The SoCs that the row is for, or, with a minus before, not for; empty: for every SoC."""
    priority: int | None = None
    """The row's priority; None where the cell is empty, which counts as 0."""
    input_files: Mapping[str, Path] = field(default_factory=dict)
    """The files of inputs that are not generated, by name, checked to fit `inputs`."""
    golden_files: Mapping[str, Path] = field(default_factory=dict)
    """The files of goldens that are not computed, by the output's name."""
    batch: BatchSlice | None = None
    """The slices that must have the same bytes as those of other rows with the same seed."""


@dataclass(frozen=True)
class CaseFile:
    """A case file, understood."""

    path: Path
    """The file."""
    columns: tuple[str, ...]
    """The header, in the file's order and spelling."""
    cases: tuple[Case, ...]
    """The rows, in the file's order; at least one."""
    unknown_columns: tuple[str, ...]
    """Columns that are no TTK column: kept and copied to the result, otherwise unused."""
