"""The validation of many cases on a server, without any input or output of its own.

A session goes over as many streams as it takes: what has no verdict when a connection breaks is
sent again on the next. Results come in the order of the cases; how far the others may be ahead of
the slowest is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from opferry import errors, wire
from opferry._sessions import StopError, broken_off
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, raw_bytes
from opferry.operators.base import OutputSpec
from opferry.v1 import validation_pb2 as pb
from opferry.validation._golden_files import with_golden_files
from opferry.validation._judge import judged_result, results_of, verdict_of
from opferry.validation._making import data_of, refuse_what_cannot_be_made, request_of
from opferry.validation._refusal import judge_refusal
from opferry.validation.case import Case
from opferry.validation.inputs import check_digest, digest, generate
from opferry.validation.outcome import (
    GOLDEN_PREFIX,
    CaseResult,
    CaseStatus,
    GoldenMode,
    OutputResult,
    RunSettings,
    WallTimes,
)
from opferry.validation.recipes import Recipe
from opferry.validation.requests import CaseRequest, JudgedOutput, ValidationSettings
from opferry.validation.suite import NOBODY_CAN_RUN
from opferry.wire.validation import case_message, judged_output, settings_message

AHEAD = 4
"""So many times the cases under way may be finished before the slowest of them."""

WINDOW_WITH_TENSORS = 4
"""The most cases under way whose tensors come back: they lie in memory here."""

CHECKED_BYTES = 64 * 1024
"""Inputs up to this size are made here too, and their digests compared: half a millisecond."""

CHECKED_FIRST, CHECKED_EACH = 2, 16
"""Of a kind that is the first few, and one in so many of the rest: a generator that makes other
bits does so with all of a kind, and a suite may have thousands of it."""

KIND_COUNT = 4096
"""So many kinds are counted; then counting begins anew."""


class _SpotChecks:
    """Chooses the inputs that are made here too."""

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()
        self._all = False

    def check(self, recipe: Recipe, found: bytes) -> None:
        """Make an input here too, if it is chosen, and compare; after a difference all are.

        Raises:
            Problem: RECIPE_MISMATCH.
        """
        if recipe.spec.data_bytes > CHECKED_BYTES or not self._choose(recipe):
            return
        try:
            check_digest(recipe, generate(recipe), found)
        except Problem:
            self._all = True
            raise

    def _choose(self, recipe: Recipe) -> bool:
        spec = recipe.spec
        kind = (spec.dtype, spec.is_contiguous, recipe.distribution, recipe.values)
        if len(self._counts) >= KIND_COUNT:
            self._counts.clear()
        self._counts[kind, recipe.input_name] += 1
        first = self._counts[kind, recipe.input_name] <= CHECKED_FIRST
        # by what names the data, not by turns: those may be in step with the inputs of a case
        return self._all or first or recipe.key % CHECKED_EACH == 0


@dataclass
class _Entry:
    """A case on its way."""

    position: int
    case: Case
    request: CaseRequest
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    unreadable: errors.OpFerryError | None = None
    result: CaseResult | None = None


class ValidateSession:
    """The cases of a run, on their way to their results."""

    method = "Validate"
    """Which streams it goes over."""

    def __init__(
        self,
        cases: Iterable[Case],
        run: RunSettings,
        settings: ValidationSettings,
        limits: LimitsConfig,
    ) -> None:
        """Begin a run.

        Args:
            cases: the cases; drawn one by one as they are sent.
            run: the settings of the run, for the results.
            settings: the settings of the streams.
            limits: what the server allows.
        """
        self._cases = iter(cases)
        self._run = run
        self._settings = settings
        self._limits = limits
        self._has_tensors = settings.dump_outputs or settings.dump_goldens
        self._again: deque[_Entry] = deque()
        self._open: dict[int, _Entry] = {}
        self._done: dict[int, CaseResult] = {}
        self._frames: deque[Iterator[bytes]] = deque()
        self._drawn = 0
        self._yielded = 0
        self._exhausted = False
        self._window = 0
        self._case_id = 0
        self._stopped = ""
        self._spot_checks = _SpotChecks()
        self.welcomed = False
        """Whether a server has taken the run at least once."""

    @property
    def finished(self) -> bool:
        """Whether every case has its result, and every result has been taken."""
        return self._exhausted and self._yielded == self._drawn

    @property
    def all_sent(self) -> bool:
        """Whether this stream needs no further case."""
        return self._exhausted and not self._again

    @property
    def under_way(self) -> bool:
        """Whether a case on this stream is without its result."""
        return bool(self._open)

    def header(self) -> bytes:
        """Return the first frame of a new stream; what had no verdict on the last is sent again."""
        self._again.extend(self._open.values())
        self._again = deque(sorted(self._again, key=lambda entry: entry.position))
        self._open.clear()
        self._frames.clear()
        self._window = self._case_id = 0
        for entry in self._again:
            entry.arrays, entry.received, entry.sent, entry.result = {}, {}, {}, None
        return pb.ValidateRequest(header=settings_message(self._settings)).SerializeToString()

    def receive(self, frame: bytes) -> None:
        """Take in a frame.

        Raises:
            OpFerryError: a TransportError if it is not as the schema says; a ServerBusyError if the
                server can take no cases just now.
            StopError: if no further case can be judged.
        """
        try:
            response = pb.ValidateResponse.FromString(frame)
            if response.HasField("welcome"):
                self.welcomed = True
                self._window = max(1, response.welcome.case_count)
                if self._has_tensors:
                    self._window = min(self._window, WINDOW_WITH_TENSORS)
            elif response.HasField("needed"):
                entry = self._open[response.needed.case_id]
                order = list(entry.request.inputs)
                names = [_nth(order, index) for index in response.needed.input_indexes]
                self._frames.append(self._chunks(entry, names))
            elif response.HasField("verdict"):
                self._judge(response.verdict)
            elif response.HasField("chunk"):
                self._put(response.chunk)
        except DecodeError as error:
            problem = Problem(Reason.STREAM_PROTOCOL, "a frame is no message of the schema")
            raise errors.unreadable(problem) from error
        except (KeyError, IndexError) as error:
            problem = Problem(
                Reason.STREAM_PROTOCOL, f"a frame concerns no case or tensor of ours: {error}"
            )
            raise errors.unreadable(problem) from error

    def to_send(self) -> Iterator[Iterator[bytes]]:
        """Yield what can be sent now; each item makes its frames when they are needed."""
        while self._frames:
            yield self._frames.popleft()
        while len(self._open) < self._window:
            entry = self._next_entry()
            if entry is None:
                return
            try:
                message = case_message(entry.request)
            except Problem as problem:
                self._fail(entry, errors.from_problem(problem))
                continue
            self._open[entry.request.case_id] = entry
            yield iter((pb.ValidateRequest(case=message).SerializeToString(),))

    def results(self) -> Iterator[CaseResult]:
        """Yield the results that are there, in the order of the cases."""
        while self._yielded in self._done:
            self._yielded += 1
            yield self._done.pop(self._yielded - 1)

    def stop(self, error: errors.OpFerryError) -> None:
        """Give up: what has no result is NOT RUN."""
        unfinished = sorted([*self._open.values(), *self._again], key=lambda entry: entry.position)
        self._open.clear()
        self._again.clear()
        for entry in unfinished:
            self._not_run(entry.position, entry.case, error)
        self._draw_rest(error)

    def _draw_rest(self, error: errors.OpFerryError) -> None:
        for case in self._cases:
            position, self._drawn = self._drawn, self._drawn + 1
            if case.is_enabled:
                self._not_run(position, case, error)
            else:
                self._done[position] = _disabled(case, self._run)
        self._exhausted = True

    def _not_run(self, position: int, case: Case, error: errors.OpFerryError) -> None:
        first = not self._stopped
        if first:
            self._stopped = f"the run stopped at row {case.row} ({case.name}): {error}"
        self._done[position] = CaseResult(
            case,
            self._run,
            CaseStatus.NOT_RUN,
            str(error) if first else self._stopped,
            error=error if first else None,
        )

    def _next_entry(self) -> _Entry | None:
        """Return the next case to send, with a new number; None if there is none just now."""
        if self._again:
            entry = self._again.popleft()
        else:
            found = self._draw()
            if found is None:
                return None
            entry = found
        self._case_id += 1
        entry.request = replace(entry.request, case_id=self._case_id)
        return entry

    def _draw(self) -> _Entry | None:
        """Draw cases until one is to be sent; the others have their results at once."""
        while self._drawn - self._yielded < AHEAD * self._window:
            case = next(self._cases, None)
            if case is None:
                self._exhausted = True
                return None
            position, self._drawn = self._drawn, self._drawn + 1
            if not case.is_enabled:
                self._done[position] = _disabled(case, self._run)
                continue
            try:
                if case.problem is not None:
                    raise errors.from_problem(case.problem)
                refuse_what_cannot_be_made(case, self._limits)
                return _Entry(position, case, request_of(case, self._run))
            except Problem as problem:
                self._settle(position, _failed(case, self._run, errors.from_problem(problem)))
            except errors.OpFerryError as error:
                self._settle(position, _failed(case, self._run, error))
        return None

    def _chunks(self, entry: _Entry, names: Iterable[str]) -> Iterator[bytes]:
        """Yield the frames of data that the server lacks, each made when it is needed.

        The case may have its verdict by then: the server drops what it waits for no longer.
        """
        case_id, sent, order = entry.request.case_id, entry.sent, list(entry.request.inputs)
        step = wire.chunk_bytes(self._limits)
        for name in names:
            try:
                tensor = data_of(entry.case, self._run, name)
            except (OSError, ValueError) as error:
                # nobody waits for this frame; the server gives the case up, and then it is told
                text = f"{name} can no longer be read: {error}"
                problem = Problem(Reason.TENSOR_MALFORMED, text, argument=name)
                entry.unreadable = errors.from_problem(problem)
                return
            sent[name] = digest(tensor)
            for at in range(0, tensor.data.nbytes, step):
                chunk = pb.CaseChunk(
                    case_id=case_id,
                    tensor=pb.CASE_TENSOR_INPUT,
                    tensor_index=order.index(name),
                    offset_bytes=at,
                    data=bytes(tensor.data[at : at + step]),
                )
                yield pb.ValidateRequest(chunk=chunk).SerializeToString()

    def _judge(self, verdict: pb.CaseVerdict) -> None:
        entry = self._open[verdict.case_id]
        if verdict.error:
            error = entry.unreadable or broken_off(errors.from_status(verdict.error))
            if error.may_retry:
                raise error  # the entry stays open: it goes on the next stream
            if isinstance(error, errors.AccessError) or error.reason in NOBODY_CAN_RUN:
                raise StopError(error)
            del self._open[verdict.case_id]
            self._fail(entry, error)
            return
        entry.names = tuple(output.name for output in verdict.outputs)
        # an output that the operator does not have is an error, whether or not it is to be dumped
        specs = {name: entry.case.inputs[_spec_of(entry.case, name).like] for name in entry.names}
        entry.result = self._result(entry, verdict)
        for prefix, wanted in (("", verdict.has_outputs), (GOLDEN_PREFIX, verdict.has_goldens)):
            for name, spec in specs.items() if wanted else ():
                promoted = prefix and self._settings.golden_mode is GoldenMode.PROMOTE
                dtype = np.dtype(np.float64) if promoted else spec.dtype.numpy
                entry.arrays[prefix + name] = np.empty(spec.shape, dtype)
                entry.received[prefix + name] = 0
        self._finish_if_whole(verdict.case_id)

    def _put(self, chunk: pb.CaseChunk) -> None:
        entry = self._open[chunk.case_id]
        prefix = GOLDEN_PREFIX if chunk.tensor == pb.CASE_TENSOR_GOLDEN else ""
        name = prefix + _nth(entry.names, chunk.tensor_index)
        data, target = chunk.data, raw_bytes(entry.arrays[name])
        at = entry.received[name]
        if chunk.offset_bytes != at or not 0 < len(data) <= target.nbytes - at:
            problem = Problem(Reason.STREAM_PROTOCOL, f"a chunk of {name} is out of place")
            raise errors.unreadable(problem)
        target[at : at + len(data)] = data
        entry.received[name] += len(data)
        self._finish_if_whole(chunk.case_id)

    def _finish_if_whole(self, case_id: int) -> None:
        entry = self._open[case_id]
        if all(entry.received[name] == entry.arrays[name].nbytes for name in entry.arrays):
            del self._open[case_id]
            assert entry.result is not None  # noqa: S101 - it has been judged
            result = replace(entry.result, dumped=entry.arrays)
            self._settle(entry.position, with_golden_files(result))

    def _fail(self, entry: _Entry, error: errors.OpFerryError) -> None:
        self._settle(entry.position, _failed(entry.case, self._run, error, executed=True))

    def _settle(self, position: int, result: CaseResult) -> None:
        self._done[position] = result

    def _result(self, entry: _Entry, verdict: pb.CaseVerdict) -> CaseResult:
        case, run = entry.case, self._run
        execution = wire.execution_from_message(verdict.execution)
        digests = {
            name: verdict.input_digests[8 * at : 8 * at + 8]
            for at, name in enumerate(entry.request.inputs)
        }
        times = WallTimes(
            generate_ns=verdict.generate_ns,
            execute_ns=sum(execution.timings.kernel_ns),
            golden_ns=verdict.golden_ns,
            compare_ns=verdict.compare_ns,
            total_ns=verdict.total_ns,
        )
        outputs: tuple[OutputResult, ...] = ()
        error = None
        try:
            self._check_digests(entry, digests)
        except Problem as problem:
            error = errors.from_problem(problem, execution.request_id)
        if error is not None:
            status, reason = CaseStatus.ERROR, str(error)
        elif case.expected_status is not None:
            status, reason = judge_refusal(
                case.expected_status, None, checked=run.options.check, executed=True
            )
        else:
            judged = {
                output.name: judged_output(output, run.standard, run.edition)
                for output in verdict.outputs
            }
            outputs = _outputs(case, judged)
            status, reason = verdict_of(outputs)
        return CaseResult(
            case,
            run,
            status,
            reason,
            outputs=outputs,
            execution=execution,
            times=times,
            error=error,
            input_digests=digests,
        )

    def _check_digests(self, entry: _Entry, digests: Mapping[str, bytes]) -> None:
        """Check what the server says of inputs by what is known, or can quickly be known, here.

        Data that it had kept are checked as well: a file may have been changed.
        """
        for name, source in entry.request.sources.items():
            if isinstance(source, Recipe):
                self._spot_checks.check(source, digests[name])
                continue
            given = entry.case.given.get(name)
            wanted = entry.sent.get(name, b"")
            if not wanted and isinstance(given, HostTensor):
                wanted = digest(given)
            if wanted not in (b"", digests[name]):
                raise Problem(
                    Reason.CHECKSUM_MISMATCH,
                    f"{name} has the digest {digests[name].hex()} on the server and {wanted.hex()} "
                    "here: it was changed on the way, run the case again",
                    argument=name,
                    given=digests[name].hex(),
                    allowed=wanted.hex(),
                )


def _outputs(case: Case, judged: Mapping[str, JudgedOutput]) -> tuple[OutputResult, ...]:
    def judge(output: OutputSpec) -> OutputResult:
        return judged_result(case, output, judged[output.name])

    return results_of(case, judged, judge)


def _nth(names: Sequence[str], index: int) -> str:
    """Return the name at a position that a server says; a negative one is none."""
    if index < 0:
        raise IndexError(index)
    return names[index]


def _spec_of(case: Case, name: str) -> OutputSpec:
    return {output.name: output for output in case.operator.outputs}[name]


def _disabled(case: Case, run: RunSettings) -> CaseResult:
    return CaseResult(case, run, CaseStatus.DISABLED, "is_enabled is False")


def _failed(
    case: Case, run: RunSettings, error: errors.OpFerryError, *, executed: bool = False
) -> CaseResult:
    """Return the result of a case that was refused, or failed; it may have been meant to."""
    if case.expected_status is None or isinstance(error, errors.DeadlineError):
        return CaseResult(case, run, CaseStatus.ERROR, str(error), error=error)
    status, reason = judge_refusal(
        case.expected_status, error, checked=run.options.check, executed=executed
    )
    return CaseResult(case, run, status, reason, error=error)
