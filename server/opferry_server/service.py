"""The operator service: messages to vocabulary, through admission to a worker, and back.

Execute, step by step: header, check, memory, body, worker, result header, result body. The same
path serves the unary calls, whose body is already there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import structlog

from opferry import wire
from opferry.core.execution import Execution, ServerInfo
from opferry.core.limits import LimitsConfig, too_large
from opferry.core.problems import Problem, Reason
from opferry.operators import OPERATORS
from opferry.operators.base import Operator
from opferry.operators.call import Call, CheckedCall, check_call
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from opferry_server.admission import Admission
from opferry_server.interceptors import ClientGoneError, ErrorTexts, current_request_id
from opferry_server.jobs import Job, JobState
from opferry_server.packages import Packages
from opferry_server.reports import describe_execution
from opferry_server.timeouts import timeout
from opferry_server.uploads import Upload
from opferry_server.workers.messages import RunReply

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]

_T = TypeVar("_T")

_STATES = {
    JobState.WAITING_FOR_MEMORY: pb.ExecuteProgress.STATE_QUEUED,
    JobState.UPLOADING: pb.ExecuteProgress.STATE_UPLOADING,
    JobState.WAITING_FOR_WORKER: pb.ExecuteProgress.STATE_QUEUED,
    JobState.RUNNING: pb.ExecuteProgress.STATE_RUNNING,
}


class OperatorService:
    """The methods of opferry.v1.OperatorService."""

    def __init__(
        self,
        limits: LimitsConfig,
        admission: Admission,
        texts: ErrorTexts,
        describe: Callable[[], ServerInfo],
        packages: Packages,
        *,
        plans: bool,
    ) -> None:
        """Serve calls.

        Args:
            limits: the server's limits.
            admission: the lines that requests pass.
            texts: the error texts for GetErrorText.
            describe: returns what the server is now.
            packages: the operator packages that a request can choose.
            plans: whether the workers can be asked for a plan.
        """
        self._limits = limits
        self._admission = admission
        self._texts = texts
        self._describe = describe
        self._packages = packages
        self._plans = plans
        self._idle_s = limits.stream_idle_ms / 1000

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods of the schema."""
        named: dict[str, Callable[..., Awaitable[Any]]] = {
            "Execute": self.execute,
            "Plan": self.plan,
            "GetServerInfo": self.get_server_info,
            "GetErrorText": self.get_error_text,
            **{operator.name: self._unary_method(operator) for operator in OPERATORS.values()},
        }
        return grpc.method_handlers_generic_handler(
            wire.SERVICE_NAME,
            {
                # frames are read and written by wire, as they are
                method.name: grpc.stream_stream_rpc_method_handler(named[method.name])
                if method.streaming
                else grpc.unary_unary_rpc_method_handler(
                    named[method.name],
                    method.request.FromString,
                    method.response.SerializeToString,
                )
                for method in wire.methods.values()
            },
        )

    async def execute(self, _: Any, context: Context) -> None:
        """Serve one Execute stream."""
        header = await self._header(context)
        checked = self._check(wire.call_from_header(header, self._limits))

        async def report(job: Job) -> None:
            progress = pb.ExecuteProgress(
                state=_STATES[job.state], position=job.position, request_id=job.request_id
            )
            await self._write(context, pb.ExecuteResponse(progress=progress).SerializeToString())

        job = self._job(checked, context)
        with self._admission.entered(job):
            await self._admission.wait(job, JobState.UPLOADING, report)
            await report(job)
            started_s = time.monotonic()
            await self._receive(job, context)
            upload_s = time.monotonic() - started_s
            execution, digests = await self._run(job, upload_s, report)
            await self._send(job, execution, digests, context)

    async def plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        """Serve Plan: the contract, the limits and the device's own first stage, no data."""
        checked = self._check(wire.call_from_plan_request(request, self._limits))
        assert checked.plan is not None  # noqa: S101 - a plan request is always checked
        job = self._job(checked, context, plan_only=True)
        found = replace(checked.plan, operator_package=job.package)
        if self._plans:
            with self._admission.entered(job):
                await self._admission.wait(job, JobState.UPLOADING)
                await self._admission.body_complete(job)
                await self._admission.wait(job, JobState.DONE)
                assert isinstance(job.outcome, RunReply)  # noqa: S101 - wait raises any problem
                assert job.backend_info is not None  # noqa: S101 - it ran there
                found = replace(
                    found,
                    device_workspace_bytes=job.outcome.workspace_bytes,
                    operator_package=job.backend_info.operator_package,
                )
        return wire.plan_response(found, current_request_id())

    async def get_server_info(
        self, request: pb.GetServerInfoRequest, _: Context
    ) -> pb.GetServerInfoResponse:
        """Serve GetServerInfo."""
        return wire.server_info_message(self._describe())

    async def get_error_text(
        self, request: pb.GetErrorTextRequest, _: Context
    ) -> pb.GetErrorTextResponse:
        """Serve GetErrorText."""
        return pb.GetErrorTextResponse(text=self._texts.find(request.request_id))

    def _unary_method(self, operator: Operator) -> Callable[[Any, Context], Awaitable[Any]]:
        async def unary(request: Any, context: Context) -> Any:
            call, data = wire.call_from_unary(operator, request, self._limits)
            checked = self._check(call)
            for what, size in (
                ("inputs", checked.input_bytes),
                ("outputs", checked.output_bytes),
            ):
                if size > self._limits.unary_bytes:
                    raise too_large(f"{what} of a unary call", size, self._limits.unary_bytes)
            job = self._job(checked, context)
            with self._admission.entered(job):
                await self._admission.wait(job, JobState.UPLOADING)
                assert job.arena is not None  # noqa: S101 - it is reserved
                for name, payload in data.items():
                    at = job.placement.inputs[name]
                    job.arena.view[at : at + len(payload)] = payload
                execution, digests = await self._run(job, 0.0)
                tensors = {
                    name: tensor_pb2.Tensor(
                        spec=wire.spec_message(name, spec, digests.get(name, b"")),
                        data=bytes(_output(job, name)),
                    )
                    for name, spec in checked.outputs.items()
                }
                message = wire.execution_message(execution)
                return wire.methods[operator.name].response(execution=message, **tensors)

        return unary

    def _check(self, call: Call) -> CheckedCall:
        names = self._packages.names
        if call.operator_package and call.operator_package not in names:
            raise Problem(
                Reason.OPERATOR_PACKAGE_UNKNOWN,
                f"operator package {call.operator_package!r} is not on this server; it has "
                f"{', '.join(names)}",
                argument="operator_package",
                given=call.operator_package,
                allowed=", ".join(names),
            )
        return check_call(call, self._limits)

    def _job(self, checked: CheckedCall, context: Context, *, plan_only: bool = False) -> Job:
        package = checked.call.operator_package or self._packages.default
        return Job(
            replace(checked, call=replace(checked.call, client=context.peer())),
            self._packages.describe(package),
            current_request_id(),
            context.done,
            plan_only=plan_only,
        )

    async def _header(self, context: Context) -> pb.ExecuteHeader:
        frame = await self._read(context)
        if frame is None:
            raise Problem(Reason.STREAM_PROTOCOL, "the stream ended before its header")
        request = wire.read_request_frame(frame)
        if isinstance(request, wire.Chunk):
            raise Problem(Reason.STREAM_PROTOCOL, "a chunk came before the header")
        wire.refuse_unknown_fields(request, deep=False)
        if not request.HasField("header"):
            raise Problem(Reason.STREAM_PROTOCOL, "the first frame is neither header nor chunk")
        return request.header

    async def _receive(self, job: Job, context: Context) -> None:
        """Receive the body, until it is complete or the server sends the job away."""
        upload = Upload(job)
        sent_away = asyncio.ensure_future(job.sent_away.wait())
        try:
            while (frame := await self._read_unless(sent_away, context)) is not None:
                request = wire.read_request_frame(frame)
                if not isinstance(request, wire.Chunk):
                    raise Problem(Reason.STREAM_PROTOCOL, "a frame after the header is not a chunk")
                upload.write(request)
        finally:
            sent_away.cancel()
        if job.outcome is None:
            upload.finish()

    async def _read_unless(self, sent_away: asyncio.Future[Any], context: Context) -> bytes | None:
        """Return the next frame; None at the end, or when *sent_away* is done first."""
        reading = asyncio.ensure_future(self._read(context))
        try:
            await asyncio.wait((reading, sent_away), return_when=asyncio.FIRST_COMPLETED)
            return None if sent_away.done() else await reading
        finally:
            reading.cancel()

    async def _run(
        self, job: Job, upload_s: float, report: Callable[[Job], Awaitable[None]] | None = None
    ) -> tuple[Execution, dict[str, bytes]]:
        await self._admission.body_complete(job)
        await self._admission.wait(job, JobState.DONE, report)
        assert isinstance(job.outcome, RunReply)  # noqa: S101 - wait raises any problem
        assert job.worker is not None  # noqa: S101 - it ran there
        timings = job.outcome.timings
        execution = describe_execution(job, upload_s)
        log.info(
            "executed",
            operator=job.checked.call.operator.name,
            worker=job.worker.name,
            upload_bytes=job.checked.input_bytes,
            download_bytes=job.checked.output_bytes,
            queue_ms=round(job.waited_s * 1000, 3),
            upload_ms=round(upload_s * 1000, 3),
            kernel_ms=[round(ns / 1e6, 3) for ns in timings.kernel_ns],
        )
        return execution, dict(job.outcome.digests)

    async def _send(
        self, job: Job, execution: Execution, digests: dict[str, bytes], context: Context
    ) -> None:
        outputs = job.checked.outputs
        result = pb.ExecuteResult(
            outputs=[
                wire.spec_message(name, spec, digests.get(name, b""))
                for name, spec in outputs.items()
            ],
            execution=wire.execution_message(execution),
        )
        await self._write(context, pb.ExecuteResponse(result=result).SerializeToString())
        chunk_bytes = wire.chunk_bytes(self._limits)
        for index, name in enumerate(outputs):
            view = _output(job, name)
            for at in range(0, view.nbytes, chunk_bytes):
                chunk = wire.Chunk(index, at, view[at : at + chunk_bytes])
                await self._write(context, wire.chunk_frame(chunk, response=True))

    async def _read(self, context: Context) -> bytes | None:
        frame = await self._in_time(context.read(), "sent")
        return None if frame is grpc.aio.EOF else frame

    async def _write(self, context: Context, frame: bytes) -> None:
        await self._in_time(context.write(frame), "read")

    async def _in_time(self, operation: Awaitable[_T], verb: str) -> _T:
        try:
            async with timeout(self._idle_s):
                return await operation
        except grpc.aio.InternalError as err:
            # what grpc says when the connection is gone in the middle of an operation
            raise ClientGoneError from err
        except asyncio.TimeoutError:
            raise Problem(
                Reason.STREAM_IDLE,
                f"the client {verb} nothing for {self._limits.stream_idle_ms} ms",
                argument="stream_idle_ms",
                allowed=str(self._limits.stream_idle_ms),
            ) from None


def _output(job: Job, name: str) -> memoryview:
    assert job.arena is not None  # noqa: S101 - it is held until the handler leaves
    at = job.placement.outputs[name]
    return job.arena.view[at : at + job.checked.outputs[name].data_bytes]
