"""The synchronous client. Its twin is `opferry.aio`; what both do alike is in `_calls`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opferry import _calls, _validation_calls, errors, wire
from opferry._channel import check_one_server
from opferry._many import many_session
from opferry._rotary_methods import RotaryMethods
from opferry._tries import OnProgress
from opferry.core.execution import ExecutionOptions, Priority, ServerInfo
from opferry.core.farm import DEFAULT_LEASE_S, DeviceLease, Queue
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor
from opferry.operators.call import Call, CallResult
from opferry.results import CallOutcome
from opferry.v1 import farm_service_pb2 as farm_pb
from opferry.v1 import operator_service_pb2 as pb
from opferry.validation.case import Case, CaseFile, Tolerance
from opferry.validation.outcome import CaseResult, GoldenMode, InputSource
from opferry.wire.farm import device_lease_from_message, queue_from_message


class Client(RotaryMethods):
    """A connection to a server. Made by `opferry.connect`; safe to use from many threads.

    Use it in a `with` statement, or close it.
    """

    def execute(
        self,
        call: Call,
        tensors: Mapping[str, HostTensor],
        *,
        timeout: float | None = None,
        copy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> CallResult:
        """Run any operator's call; what the typed methods and the validation are made of.

        Args:
            call: operator, attributes, specs, options.
            tensors: the inputs by name, with the call's specs.
            timeout: seconds for the whole call; None: the client's own.
            copy: return writable arrays of the caller's own, as `apply_rotary_pos_emb_grad` does.
            on_progress: called with each `Progress`.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        try:
            prepared = _calls.prepare_tensors(call, tensors, copy=copy)
        except Problem as problem:
            raise errors.from_problem(problem) from problem
        return self._execute(prepared, timeout, on_progress)

    def execute_many(
        self,
        operator: str,
        calls: Iterable[Mapping[str, Any]],
        *,
        attributes: Mapping[str, Any] | None = None,
        check: bool = True,
        keep_strides: bool = False,
        operator_package: str = "",
        repeat: int = 1,
        warmup: int = 0,
        exclusive: bool = False,
        deterministic: bool = False,
        priority: Priority | str | None = None,
        poison_outputs: bool = True,
        checksum: bool = False,
        timeout: float | None = None,
    ) -> Iterator[CallOutcome]:
        """Run many small calls of an operator over one stream, and return their outcomes in order.

        For calls by the thousand: each is checked, queued and run as by a call of its own, but
        without the cost of one. If the connection breaks, or the server is started again, what has
        no outcome is sent once more. A call that goes wrong has its error in its outcome, and does
        not keep the others from theirs.

        Args:
            operator: its name, such as "apply_rotary_pos_emb_grad".
            calls: the inputs of each call by name, numpy arrays; None where absent. Drawn as they
                are sent. A call that is too large for a message goes its own way, in its turn.
            attributes: the operator's attributes by name, for all calls; None: its defaults.
            check: see `apply_rotary_pos_emb_grad`, as all that follow.
            keep_strides: see there.
            operator_package: see there.
            repeat: see there.
            warmup: see there.
            exclusive: see there.
            deterministic: see there.
            priority: see there; None: batch.
            poison_outputs: see there.
            checksum: see there.
            timeout: seconds without a word from the server; None: the client's own.

        Returns:
            The outcomes, in the order of the calls: `.result()` returns the outputs by name and the
            execution, or raises what went wrong.

        Raises:
            OpFerryError: a RequestError for an operator that is not served; a TransportError if the
                server cannot be reached at all.
        """
        session = many_session(
            operator,
            calls,
            self._limits(timeout),
            self._buffers,
            ExecutionOptions(
                check=check,
                repeat=repeat,
                output_digests=checksum,
                warmup=warmup,
                exclusive=exclusive,
                deterministic=deterministic,
                priority=_calls.priority_of(priority),
                poison_outputs=poison_outputs,
            ),
            attributes=attributes or {},
            operator_package=operator_package,
            keep_strides=keep_strides,
            checksum=checksum,
        )
        return self._execute_many(session, timeout)

    def validate(
        self,
        operator: str,
        inputs: Mapping[str, Any],
        *,
        attributes: Mapping[str, Any] | None = None,
        name: str = "case",
        tolerances: Mapping[str, Tolerance] | None = None,
        standard: str = "mixed",
        edition: str = "current",
        golden_mode: GoldenMode = GoldenMode.ENABLE,
        check: bool = True,
        operator_package: str = "",
        repeat: int = 1,
        warmup: int = 0,
        exclusive: bool = False,
        deterministic: bool = False,
        priority: Priority | str | None = None,
        worst_count: int = 8,
        dump: bool = False,
        timeout: float | None = None,
    ) -> CaseResult:
        """Run an operator on the server, and have its outputs judged there by a golden.

        Only what the server lacks crosses the wire: recipes in place of data that it can make,
        digests in place of data that it still has, the verdict in place of outputs.

        Args:
            operator: its name, such as "apply_rotary_pos_emb_grad".
            inputs: by name, each a numpy array, a `validation.Recipe` (its input_name is set here),
                or a `TensorSpec`, which is made of uniform values from -2 to 2; None where absent.
            attributes: the operator's attributes by name; None: the operator's defaults.
            name: the case's name; recipes without one of their own are made for it.
            tolerances: by output, for the standard "close".
            standard: one of `validation.STANDARDS`.
            edition: one of `validation.EDITIONS`, for "mixed".
            golden_mode: in which arithmetic the golden is computed.
            check: check the contract before the backend sees the call.
            operator_package: which of the server's operator packages runs it; "": its default.
            repeat: how often the operator runs; each run is timed.
            warmup: how often it runs before that, untimed.
            exclusive: run while nothing else runs on the device: for timing.
            deterministic: fail unless all runs of *repeat* give the same bits.
            priority: "interactive" or "batch"; None: batch, which lets single calls go first.
            worst_count: how many of the worst elements of an output are told, 1 to 64.
            dump: also return outputs and goldens, in `CaseResult.dumped`.
            timeout: seconds without a word from the server; None: the client's own.

        Returns:
            The verdict: PASS or FAIL, with the figures, the worst elements, histograms and digests.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`, if it could not be judged.
        """
        case = _validation_calls.case_of(operator, inputs, attributes, name, tolerances)
        found = self.validate_cases(
            (case,),
            standard=standard,
            edition=edition,
            golden_mode=golden_mode,
            check=check,
            operator_package=operator_package,
            repeat=repeat,
            warmup=warmup,
            exclusive=exclusive,
            deterministic=deterministic,
            priority=priority,
            worst_count=worst_count,
            dump_outputs=dump,
            dump_goldens=dump,
            timeout=timeout,
        )
        (result,) = found
        return _validation_calls.judged(result)

    def validate_cases(
        self,
        cases: Iterable[Case] | CaseFile,
        *,
        seed: int = 0,
        standard: str = "mixed",
        edition: str = "current",
        golden_mode: GoldenMode = GoldenMode.ENABLE,
        check: bool = True,
        operator_package: str = "",
        repeat: int = 1,
        warmup: int = 0,
        exclusive: bool = False,
        deterministic: bool = False,
        priority: Priority | str | None = None,
        inputs: InputSource = InputSource.SERVER,
        worst_count: int = 8,
        failing_slices: bool = True,
        dump_outputs: bool = False,
        dump_goldens: bool = False,
        dump_on_fail: bool = False,
        batch_consistency: bool = False,
        timeout: float | None = None,
    ) -> Iterator[CaseResult]:
        """Have many cases judged on the server, and return their results as they come, in order.

        Many are under way at once. If the connection breaks, or the server is started again, what
        has no verdict is sent once more. What cannot be judged is an ERROR, with its error; once
        the server is given up, the rest is NOT RUN.

        Args:
            cases: what `validation.read_cases` found, or some of its cases, or any others; drawn as
                they are sent.
            seed: makes the inputs; the same seed gives the same bits.
            standard: see `validate`.
            edition: see there.
            golden_mode: see there.
            check: see there.
            operator_package: see there.
            repeat: see there.
            warmup: see there.
            exclusive: see there.
            deterministic: see there.
            priority: see there.
            inputs: where the inputs are made: on the server, or here, to be sent.
            worst_count: see there.
            failing_slices: tell the values along the last axis at an output's first element that
                does not pass.
            dump_outputs: return the outputs, in `CaseResult.dumped`.
            dump_goldens: return the goldens likewise.
            dump_on_fail: return them only of cases in which an output does not pass.
            batch_consistency: make the inputs of cases with slices so that these can be compared,
                and return their outputs; see `validation.BatchConsistency`.
            timeout: seconds without a word from the server; None: the client's own.

        Returns:
            The results, in the order of the cases.

        Raises:
            OpFerryError: a RequestError for a word that is not served; a TransportError if the
                server cannot be reached at all.
        """
        session = _validation_calls.session(
            cases,
            self._limits(timeout),
            ExecutionOptions(
                check=check,
                repeat=repeat,
                warmup=warmup,
                exclusive=exclusive,
                deterministic=deterministic,
                priority=_calls.priority_of(priority),
            ),
            seed=seed,
            standard=standard,
            edition=edition,
            golden_mode=golden_mode,
            operator_package=operator_package,
            inputs=inputs,
            worst_count=worst_count,
            failing_slices=failing_slices,
            dump_outputs=dump_outputs,
            dump_goldens=dump_goldens,
            dump_on_fail=dump_on_fail,
            batch_consistency=batch_consistency,
        )
        return self._converse(session, timeout)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return what the server is, can run and allows, as of now.

        Args:
            timeout: seconds; None: the client's own.

        Raises:
            OpFerryError: a TransportError or a DeadlineError.
        """
        response = self._unary("GetServerInfo", pb.GetServerInfoRequest(), timeout)
        info = wire.server_info_from_message(response)
        self._info = info
        return info

    def error_text(self, request_id: str, *, timeout: float | None = None) -> str:
        """Return the full text of an error whose text was cut.

        Args:
            request_id: the error's `request_id`.
            timeout: seconds; None: the client's own.

        Raises:
            OpFerryError: a RequestError if the server keeps no text for it.
        """
        request = pb.GetErrorTextRequest(request_id=request_id)
        text: str = self._unary("GetErrorText", request, timeout).text
        return text

    def queue(self, *, timeout: float | None = None) -> Queue:
        """Return the requests inside the server, in the order in which they are to run.

        Args:
            timeout: seconds; None: the client's own.

        Raises:
            OpFerryError: a TransportError or a DeadlineError.
        """
        return queue_from_message(
            self._unary("ListRequests", farm_pb.ListRequestsRequest(), timeout)
        )

    def cancel(self, request_id: str, *, timeout: float | None = None) -> bool:
        """End a request of one's own tenant; an admin ends anybody's.

        What waits ends at once; what a device runs is finished, and its result dropped.

        Args:
            request_id: the server's id of it, or of a stream of many, which ends all of them.
            timeout: seconds; None: the client's own.

        Returns:
            Whether a device runs it.

        Raises:
            OpFerryError: a RequestError if no such request is inside this server.
        """
        request = farm_pb.CancelRequestRequest(request_id=request_id)
        running: bool = self._unary("CancelRequest", request, timeout).running
        return running

    @contextmanager
    def lease_device(
        self,
        duration_s: float = DEFAULT_LEASE_S,
        device_kind: str = "",
        *,
        on_wait: Callable[[int], None] | None = None,
    ) -> Iterator[DeviceLease]:
        """Have a device to oneself for the length of a block: this client's calls run on it.

        It is waited for, for as long as it takes. The lease ends with the block, with the
        connection, and after its time; calls are then refused with DEVICE_LEASE_EXPIRED.

        Args:
            duration_s: how long it lasts from its grant on, in seconds.
            device_kind: the system on chip, or a part of its name; "": any.
            on_wait: called with the number of leases that wait before it, whenever that changes.

        Raises:
            OpFerryError: a RequestError for a device that the server does not have, a time that is
                too long, or a target of several servers; a ServerBusyError if the tenant has as
                many as it may.
        """
        check_one_server(self.config)
        request = farm_pb.LeaseDeviceRequest(
            duration_ms=round(duration_s * 1000), device_kind=device_kind
        )
        with self._replies("LeaseDevice", request) as replies:
            for reply in replies:
                lease = device_lease_from_message(reply)
                if lease is not None:
                    break
                if on_wait is not None:
                    on_wait(reply.position)
            else:
                raise errors.unreadable(
                    Problem(Reason.STREAM_PROTOCOL, "the stream ended too soon")
                )
            with self._leased(lease.token):
                yield lease
