"""Validation of operators by TTK case files: reading, inputs, runs, comparison, results.

    file = read_cases("cases.csv")
    with ResultWriter("results.csv", file) as writer:
        for result in run_cases(file.cases, execute, seed=0):
            writer.write(result)

Nothing here knows protobuf or gRPC: what executes a call is given as a function.
"""

from __future__ import annotations

from opferry.validation.batches import BatchSample, BatchSlice
from opferry.validation.binaries import check_binary, load_binary
from opferry.validation.case import Case, CaseFile, Tolerance
from opferry.validation.compare import compare
from opferry.validation.comparison import Comparison, Element
from opferry.validation.consistency import BatchConsistency
from opferry.validation.cross_check import CrossCheck, Ratio, cross_check, cross_check_arrays
from opferry.validation.examine import examine
from opferry.validation.findings import (
    ErrorStatistics,
    FailingSlice,
    Findings,
    HeatMap,
    Histogram,
    WorstElement,
)
from opferry.validation.inputs import (
    check_digest,
    digest,
    generate,
    generate_input,
    generate_slice,
)
from opferry.validation.literals import parse_literal
from opferry.validation.outcome import (
    CaseResult,
    CaseStatus,
    GoldenMode,
    InputSource,
    OutputResult,
    OutputStatus,
    RunSettings,
    WallTimes,
)
from opferry.validation.problems import CaseFileError, CellError
from opferry.validation.ranges import ValueRange
from opferry.validation.recipes import GENERATOR_VERSION, Distribution, Recipe
from opferry.validation.results import (
    OUTPUT_FIGURES,
    RUN_COLUMNS,
    TABLE_HEADINGS,
    ResultWriter,
    count_statuses,
    result_figures,
    table_row,
)
from opferry.validation.selection import RERUN_COLUMNS, parse_ranges, select
from opferry.validation.standards import EDITIONS, LEVELS, STANDARDS
from opferry.validation.suite import Execute, exit_code, run_cases
from opferry.validation.ttk import read_cases

__all__ = [
    "EDITIONS",
    "GENERATOR_VERSION",
    "LEVELS",
    "OUTPUT_FIGURES",
    "RERUN_COLUMNS",
    "RUN_COLUMNS",
    "STANDARDS",
    "TABLE_HEADINGS",
    "BatchConsistency",
    "BatchSample",
    "BatchSlice",
    "Case",
    "CaseFile",
    "CaseFileError",
    "CaseResult",
    "CaseStatus",
    "CellError",
    "Comparison",
    "CrossCheck",
    "Distribution",
    "Element",
    "ErrorStatistics",
    "Execute",
    "FailingSlice",
    "Findings",
    "GoldenMode",
    "HeatMap",
    "Histogram",
    "InputSource",
    "OutputResult",
    "OutputStatus",
    "Ratio",
    "Recipe",
    "ResultWriter",
    "RunSettings",
    "Tolerance",
    "ValueRange",
    "WallTimes",
    "WorstElement",
    "check_binary",
    "check_digest",
    "compare",
    "count_statuses",
    "cross_check",
    "cross_check_arrays",
    "digest",
    "examine",
    "exit_code",
    "generate",
    "generate_input",
    "generate_slice",
    "load_binary",
    "parse_literal",
    "parse_ranges",
    "read_cases",
    "result_figures",
    "run_cases",
    "select",
    "table_row",
]
