"""What a client asks of a server that validates, and what it is told: without data, of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.execution import ExecutionOptions
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry.validation.case import Tolerance
from opferry.validation.comparison import Comparison
from opferry.validation.digests import output_digest
from opferry.validation.examine import examine
from opferry.validation.findings import Findings
from opferry.validation.outcome import GoldenMode
from opferry.validation.recipes import Recipe
from opferry.validation.standards import EDITIONS, STANDARDS, check_standard

MOST_WORST = 64
"""The most elements of an output that are told as the worst."""


@dataclass(frozen=True)
class ClientData:
    """An input whose data the client has."""

    sha256: bytes = b""
    """The SHA-256 of the data, 32 bytes, under which the server may keep them; empty: not kept."""


@dataclass(frozen=True)
class ValidationSettings:
    """What all cases of a stream have in common."""

    options: ExecutionOptions = field(default_factory=ExecutionOptions)
    """How each case is executed."""
    operator_package: str = ""
    """Which operator package runs the cases; empty: the server's default."""
    standard: str = STANDARDS[0]
    """One of `STANDARDS`."""
    edition: str = EDITIONS[0]
    """One of `EDITIONS`."""
    golden_mode: GoldenMode = GoldenMode.ENABLE
    """In which arithmetic the golden is computed."""
    worst_count: int = 8
    """How many of the worst elements of an output are told."""
    failing_slices: bool = True
    """Whether the values around the first element that does not pass are told."""
    dump_outputs: bool = False
    """Whether the outputs are sent."""
    dump_goldens: bool = False
    """Whether the goldens are sent."""
    dump_on_fail: bool = False
    """Whether only those of cases in which an output does not pass are."""

    def check(self) -> None:
        """Refuse what no server serves.

        Raises:
            Problem: ATTRIBUTE_INVALID or LIMIT_EXCEEDED, naming the setting.
        """
        check_standard(self.standard, self.edition)
        if not 0 < self.worst_count <= MOST_WORST:
            raise Problem(
                Reason.LIMIT_EXCEEDED,
                f"worst_count is {self.worst_count}; allowed is 1 to {MOST_WORST}",
                argument="worst_count",
                given=str(self.worst_count),
                allowed=f"1 to {MOST_WORST}",
            )


@dataclass(frozen=True)
class CaseRequest:
    """A case as a server is given it."""

    case_id: int
    """The client's number for it."""
    name: str
    """The case's name."""
    operator: Operator
    """The operator."""
    attributes: Any
    """Its attributes, as `Operator.parse_attributes` returns them."""
    inputs: Mapping[str, TensorSpec]
    """The inputs that are present."""
    sources: Mapping[str, Recipe | ClientData]
    """Where the data of each of them come from."""
    digests: Mapping[str, bytes] = field(default_factory=dict)
    """The XXH3 digests that data must have, by input."""
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    """The tolerances of outputs, for the standard `close`."""
    expects_refusal: bool = False
    """Whether the call is to be refused: nothing is compared if it is not."""
    returns_outputs: bool = False
    """Whether the outputs are sent, whatever the stream's settings say."""
    outputs: tuple[str, ...] = ()
    """The outputs that are judged; empty: all that are computed."""

    def call(self, settings: ValidationSettings) -> Call:
        """Return the call that is executed; generated data have no digest to be checked there."""
        return Call(
            operator=self.operator,
            attributes=self.attributes,
            inputs=self.inputs,
            options=settings.options,
            operator_package=settings.operator_package,
        )


@dataclass(frozen=True)
class JudgedOutput:
    """What a server says of one output."""

    name: str
    """The output's name."""
    comparison: Comparison | None
    """The verdict and its figures; None where nothing was compared."""
    findings: Findings | None
    """Where and how it differs; None likewise."""
    digest: bytes
    """The XXH3 of its data, every NaN the canonical one; 8 bytes."""
    golden_digest: bytes
    """Likewise of the golden; empty where there is none."""

    @classmethod
    def of(
        cls,
        name: str,
        actual: NDArray[Any],
        golden: NDArray[Any] | None,
        dtype: DType,
        standard: str,
        edition: str,
        tolerance: Tolerance,
        *,
        worst_count: int = 8,
        with_slice: bool = True,
    ) -> JudgedOutput:
        """Judge an output.

        Args:
            name: its name.
            actual: what came; contiguous.
            golden: what was to come, of the same shape; None if nothing is to be compared.
            dtype: its dtype.
            standard: one of `STANDARDS`.
            edition: one of `EDITIONS`.
            tolerance: for `close`; other standards take none.
            worst_count: how many of the worst elements are told.
            with_slice: whether the values around the first element that does not pass are told.
        """
        if golden is None:
            return cls(name, None, None, output_digest(actual), b"")
        own = tolerance if standard == "close" else Tolerance()
        comparison, findings = examine(
            actual,
            golden,
            standard,
            dtype=dtype,
            edition=edition,
            rtol=own.rtol,
            ptol=own.ptol,
            atol=own.atol,
            worst_count=worst_count,
            with_slice=with_slice,
        )
        return cls(name, comparison, findings, output_digest(actual), output_digest(golden))
