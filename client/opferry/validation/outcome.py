"""What came of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from numpy.typing import NDArray

from opferry.core.execution import Execution, ExecutionOptions
from opferry.errors import OpFerryError
from opferry.validation.case import Case
from opferry.validation.comparison import Comparison
from opferry.validation.findings import Findings

GOLDEN_PREFIX = "golden_"
"""What stands before an output's name for its golden, in `CaseResult.dumped`."""


class CaseStatus(str, Enum):
    """The verdict on a case; the value is the word in tables and result files."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    EXECUTED = "EXECUTED"
    """It ran, and was not to be compared."""
    ERROR = "ERROR"
    NOT_RUN = "NOT RUN"
    DISABLED = "DISABLED"


class OutputStatus(str, Enum):
    """The verdict on one output; the value is the word in tables and result files."""

    PASS = "PASS"  # noqa: S105 - a verdict
    FAIL = "FAIL"
    NOT_COMPARED = "NOT COMPARED"
    SUPPRESSED = "SUPPRESSED"
    MISSING = "MISSING"


class InputSource(str, Enum):
    """Where inputs are made; the value is the word on the command line."""

    SERVER = "server"
    CLIENT = "client"


class GoldenMode(str, Enum):
    """In which arithmetic the golden is computed; the value is TTK's word."""

    ENABLE = "Enable"
    PROMOTE = "Promote"
    DISABLE = "Disable"
    """No golden is computed, and nothing compared."""


@dataclass(frozen=True)
class RunSettings:
    """What all cases of a run have in common."""

    seed: int
    """Makes the inputs."""
    options: ExecutionOptions
    """How each row is executed."""
    standard: str
    """The comparison standard."""
    edition: str
    """The edition of `mixed`."""
    golden_mode: GoldenMode
    """Enable: float32 arithmetic, rounded to the output's dtype. Promote: float64, unrounded."""
    operator_package: str
    """The operator package asked for; empty: the server's default."""
    inputs: InputSource = InputSource.CLIENT
    """Where the inputs are made."""
    batch_consistency: bool = False
    """Whether rows with slices have the inputs by which these are compared."""


@dataclass(frozen=True)
class WallTimes:
    """Where the time of a case went, in nanoseconds; 0 for what was not reached."""

    generate_ns: int = 0
    """Generating the inputs."""
    execute_ns: int = 0
    """The execution as the caller saw it, transfers and all repeats included."""
    golden_ns: int = 0
    """Computing the golden."""
    compare_ns: int = 0
    """Comparing the outputs."""
    total_ns: int = 0
    """All of it; on a server from the case's arrival to its verdict, with all waiting."""


@dataclass(frozen=True)
class OutputResult:
    """The verdict on one output."""

    name: str
    """The output's name, for example "grad_query"."""
    short_name: str
    """The name by which users know it, for example "dq"."""
    status: OutputStatus
    """SUPPRESSED: listed, but not computed because the inputs it needs are absent. MISSING: was to
    come and did not."""
    reason: str = ""
    """Why it is not a PASS."""
    comparison: Comparison | None = None
    """The figures; None where nothing was compared."""
    findings: Findings | None = None
    """Where and how it differs from the golden; None likewise."""
    digest: bytes = b""
    """The XXH3 64-bit digest of its data, every NaN the canonical one; empty likewise."""
    golden_digest: bytes = b""
    """Likewise of the golden."""


@dataclass(frozen=True)
class CaseResult:
    """What came of one case."""

    case: Case
    """The case."""
    settings: RunSettings
    """The settings of the run."""
    status: CaseStatus
    """ERROR: it was refused, or the operator or device failed. NOT RUN: no server answered."""
    reason: str = ""
    """Why it is not a PASS, with output and worst element; of a PASS, how it was refused as it was
    to be."""
    outputs: Sequence[OutputResult] = ()
    """The outputs, in the operator's order; none where nothing was executed."""
    execution: Execution | None = None
    """Where, by what and how fast it was executed; None where it was not."""
    times: WallTimes = WallTimes()
    """Where the time went."""
    error: OpFerryError | None = None
    """The error of an ERROR or NOT RUN, or of a row that was to be refused; None for rows after the
    one at which a run stopped."""
    input_digests: Mapping[str, bytes] = field(default_factory=dict)
    """The XXH3 64-bit digest of each input's storage; none where none was made."""
    dumped: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What was to be dumped: outputs by name, goldens by name with `GOLDEN_PREFIX` before it."""

    @property
    def request_id(self) -> str:
        """The server's id of the request; "" if it never reached a server."""
        if self.execution is not None:
            return self.execution.request_id
        return "" if self.error is None else self.error.request_id
