"""Runs cases one after the other: inputs from the seed, execution, golden, comparison.

What carries a call out is given as a function, so that the same run judges a server, a device in
this process, or a reference that is broken on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from opferry.core.execution import ExecutionOptions
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem
from opferry.core.tensors import HostTensor, view_array
from opferry.errors import (
    AccessError,
    CallCancelledError,
    DeadlineError,
    OpFerryError,
    ServerBusyError,
    TransportError,
    from_problem,
)
from opferry.operators.call import Call, CallResult
from opferry.validation._golden_files import goldens_of_files
from opferry.validation._judge import judge_outputs, verdict_of
from opferry.validation._making import data_of, refuse_what_cannot_be_made
from opferry.validation._refusal import judge_refusal
from opferry.validation.case import Case
from opferry.validation.inputs import digest
from opferry.validation.outcome import (
    CaseResult,
    CaseStatus,
    GoldenMode,
    RunSettings,
    WallTimes,
)
from opferry.validation.standards import EDITIONS, STANDARDS, check_standard

NOBODY_CAN_RUN = ("OPERATOR_PACKAGE_UNKNOWN", "OPERATOR_PACKAGE_NOT_READY")
"""The reasons after which no further row is tried, since none could run."""

Execute = Callable[[Call, Mapping[str, HostTensor]], CallResult]
"""Carries out a call on its inputs; raises an `OpFerryError` if it cannot."""

STOPS_THE_RUN = (TransportError, ServerBusyError, AccessError, CallCancelledError)
"""Errors after which no further row is tried: the server is gone, full, or not for this caller."""


def run_cases(
    cases: Iterable[Case],
    execute: Execute,
    *,
    seed: int = 0,
    repeat: int = 1,
    warmup: int = 0,
    exclusive: bool = False,
    deterministic: bool = False,
    check: bool = True,
    standard: str = STANDARDS[0],
    edition: str = EDITIONS[0],
    golden_mode: GoldenMode = GoldenMode.ENABLE,
    operator_package: str = "",
    limits: LimitsConfig | None = None,
) -> Iterator[CaseResult]:
    """Run cases and yield each one's result as soon as it is there, in their order.

    The contract is not checked here first: a row that breaks it is an ERROR with what *execute*
    raised. After an error of `STOPS_THE_RUN` that row and all enabled ones after it are NOT RUN;
    any other error concerns its row alone. A row with an expected status passes if it is refused
    with just that, or without *check* with any of `REFUSALS`; if it succeeds it fails.

    Args:
        cases: what `read_cases` found; disabled ones are passed through.
        execute: carries out one call.
        seed: makes the inputs; the same seed gives the same bits.
        repeat: how often the operator runs on the same inputs.
        warmup: how often it runs before that, untimed.
        exclusive: whether nothing else runs on the device meanwhile.
        deterministic: whether every run must give the same bits.
        check: whether client and server check the contract before the backend sees a call.
        standard: one of `STANDARDS`.
        edition: one of `EDITIONS`, for the standard `mixed`.
        golden_mode: in which arithmetic the golden is computed.
        operator_package: which operator package runs it; empty: the server's default.
        limits: what the server allows; a tensor over it is refused before it is made.

    Raises:
        Problem: at the call, for a standard, edition or repeat that is not served.
    """
    limits = LimitsConfig() if limits is None else limits
    check_standard(standard, edition)
    limits.check_repeats(repeat, warmup)
    options = ExecutionOptions(
        check=check,
        repeat=repeat,
        warmup=warmup,
        exclusive=exclusive,
        deterministic=deterministic,
    )
    settings = RunSettings(seed, options, standard, edition, golden_mode, operator_package)
    # a generator of its own, so that wrong words are refused here and not at the first result
    return _results(cases, execute, settings, limits)


def _results(
    cases: Iterable[Case], execute: Execute, settings: RunSettings, limits: LimitsConfig
) -> Iterator[CaseResult]:
    stopped = ""
    for case in cases:
        if not case.is_enabled:
            yield CaseResult(case, settings, CaseStatus.DISABLED, "is_enabled is False")
            continue
        if stopped:
            yield CaseResult(case, settings, CaseStatus.NOT_RUN, stopped)
            continue
        try:
            run = _Run(case, settings, execute)
            yield run.result(limits) if case.expected_status is None else run.refusal(limits)
        except STOPS_THE_RUN as error:
            stopped = f"the run stopped at row {case.row} ({case.name}): {error}"
            yield CaseResult(case, settings, CaseStatus.NOT_RUN, str(error), error=error)
        except OpFerryError as error:
            if (isinstance(error, DeadlineError) and error.reason is None) or error.reason in (
                NOBODY_CAN_RUN
            ):
                # no word from the server, or none that another row could change
                stopped = f"the run stopped at row {case.row} ({case.name}): {error}"
                yield CaseResult(case, settings, CaseStatus.NOT_RUN, str(error), error=error)
                continue
            yield CaseResult(case, settings, CaseStatus.ERROR, str(error), error=error)


@dataclass
class _Run:
    """One case on its way."""

    case: Case
    settings: RunSettings
    execute: Execute
    times: WallTimes = field(default_factory=WallTimes)

    def result(self, limits: LimitsConfig) -> CaseResult:
        """Run the case.

        Raises:
            OpFerryError: if it could not be carried out.
        """
        refuse_what_cannot_be_made(self.case, limits)
        inputs = self._timed("generate_ns", self._inputs)
        found = self._timed("execute_ns", lambda: self.execute(self._call(), inputs))
        golden = self._timed("golden_ns", lambda: self._golden(inputs))
        outputs = self._timed(
            "compare_ns", lambda: judge_outputs(self.case, found.outputs, golden, self.settings)
        )
        status, reason = verdict_of(outputs)
        return CaseResult(
            self.case,
            self.settings,
            status,
            reason,
            outputs=outputs,
            execution=found.execution,
            times=self._all_times(),
            input_digests={name: digest(tensor) for name, tensor in inputs.items()},
        )

    def refusal(self, limits: LimitsConfig) -> CaseResult:
        """Run a case that is to be refused.

        Raises:
            OpFerryError: if nobody could judge it.
        """
        expected, found, caught = self.case.expected_status, None, None
        assert expected is not None  # noqa: S101 - the caller looked
        executed = False
        try:
            if self.case.problem is not None:
                raise from_problem(self.case.problem) from self.case.problem
            refuse_what_cannot_be_made(self.case, limits)
            inputs = self._timed("generate_ns", self._inputs)
            executed = True
            found = self._timed("execute_ns", lambda: self.execute(self._call(), inputs))
        except (*STOPS_THE_RUN, DeadlineError):
            raise
        except OpFerryError as error:
            caught = error
        status, reason = judge_refusal(
            expected, caught, checked=self.settings.options.check, executed=executed
        )
        return CaseResult(
            self.case,
            self.settings,
            status,
            reason,
            execution=None if found is None else found.execution,
            times=self._all_times(),
            error=caught,
        )

    def _all_times(self) -> WallTimes:
        times = self.times
        total_ns = times.generate_ns + times.execute_ns + times.golden_ns + times.compare_ns
        return replace(times, total_ns=total_ns)

    def _call(self) -> Call:
        return Call(
            operator=self.case.operator,
            attributes=self.case.attributes,
            inputs=self.case.inputs,
            options=self.settings.options,
            operator_package=self.settings.operator_package,
        )

    def _timed(self, field: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter_ns()
        value = work()
        self.times = replace(self.times, **{field: time.perf_counter_ns() - start})
        return value

    def _inputs(self) -> dict[str, HostTensor]:
        return {name: data_of(self.case, self.settings, name) for name in self.case.inputs}

    def _golden(self, inputs: Mapping[str, HostTensor]) -> Mapping[str, NDArray[Any]]:
        if self.settings.golden_mode is GoldenMode.DISABLE:
            return {}
        try:
            plan = self.case.operator.check(self.case.inputs, self.case.attributes)
        except Problem as problem:
            # whoever executed it let it through
            raise from_problem(problem) from problem
        arrays = {name: view_array(tensor.spec, tensor.data) for name, tensor in inputs.items()}
        computed = self.case.operator.reference(
            arrays, plan, promote=self.settings.golden_mode is GoldenMode.PROMOTE
        )
        return {**computed, **goldens_of_files(self.case)}


def exit_code(results: Iterable[CaseResult]) -> int:
    """Return what a run amounts to, as a process's exit code.

    Args:
        results: of the whole run, disabled rows included.

    Returns:
        3 if a row was not run or none ran, else 1 if one failed or was an error, else 0.
    """
    return exit_code_of({result.status for result in results})


def exit_code_of(statuses: Collection[CaseStatus]) -> int:
    """Return what a run amounts to, by the verdicts in it; see `exit_code`."""
    ran = [status for status in statuses if status is not CaseStatus.DISABLED]
    if not ran or CaseStatus.NOT_RUN in ran:
        return 3
    return 0 if all(status in (CaseStatus.PASS, CaseStatus.EXECUTED) for status in ran) else 1
