"""What one row of a case file asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opferry.core.problems import Problem
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.validation.problems import CaseFileError
from opferry.validation.ranges import ValueRange


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

    def select(self, names: Iterable[str]) -> tuple[Case, ...]:
        """Return the cases with the given names, in the file's order.

        Raises:
            CaseFileError: naming the names that no row has.
        """
        wanted = set(names)
        missing = sorted(wanted - {case.name for case in self.cases})
        if missing:
            raise CaseFileError(self.path, None, None, f"has no case named {', '.join(missing)}")
        return tuple(case for case in self.cases if case.name in wanted)
