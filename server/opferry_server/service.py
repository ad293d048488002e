"""The operator service: messages to vocabulary, through admission to a worker, and back.

Execute, step by step: header, check, memory, body, worker, result header, result body. The same
path serves the unary calls, whose body is already there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import Message

from opferry import wire
from opferry.core.execution import Execution, Priority, ServerInfo
from opferry.core.leases import ArenaRegion
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators import OPERATORS
from opferry.operators.call import Call, CheckedCall, check_call
from opferry.v1 import operator_service_pb2 as pb
from opferry_server.admission import Admission
from opferry_server.handlers import service_handlers
from opferry_server.jobs import Job, JobState, Order
from opferry_server.judging.judges import Judges
from opferry_server.judging.kept import KeptData
from opferry_server.judging.validation import Validation
from opferry_server.leases import Lease, Leases
from opferry_server.many import Behavior, ManyCalls
from opferry_server.packages import Packages
from opferry_server.places import Turns
from opferry_server.reports import describe_execution
from opferry_server.requests import ErrorTexts, Requests, current_request_id, tell
from opferry_server.served import current_identity, current_served
from opferry_server.streams import Context, ExecuteStream
from opferry_server.unary import KnownOrders, UnaryMethod
from opferry_server.workers.messages import Placement, RunReply

SPARE_PLACES = 2
"""The jobs of long streams that wait, their inputs there, for a worker or a judge to be free."""


class OperatorService:
    """The methods of opferry.v1.OperatorService."""

    def __init__(
        self,
        limits: LimitsConfig,
        admission: Admission,
        texts: ErrorTexts,
        requests: Requests,
        describe: Callable[[], ServerInfo],
        packages: Packages,
        judges: Judges,
        kept: KeptData,
        leases: Leases,
        *,
        plans: bool,
        slot_count: int,
    ) -> None:
        """Serve calls.

        Args:
            limits: the server's limits.
            admission: the lines that requests pass.
            texts: the error texts for GetErrorText.
            requests: what is around every request.
            describe: returns what the server is now.
            packages: the operator packages that a request can choose.
            judges: who validates.
            kept: the data that clients have sent to be validated.
            leases: the memory that clients on this host have leased.
            plans: whether the workers can be asked for a plan.
            slot_count: how many jobs all workers run at a time when they are ready.
        """
        self._limits = limits
        self._admission = admission
        self._texts = texts
        self._requests = requests
        self._methods = {
            name: UnaryMethod(
                operator, limits, lambda call: self._order(self._check(call)), packages.describe
            )
            for name, operator in OPERATORS.items()
        }
        self._shared = KnownOrders(packages.describe)
        self._describe = describe
        self._packages = packages
        self._leases = leases
        self._plans = plans
        # as many as keep devices and judges busy, so that single calls find a place in the line
        # and memory is soon free
        place_count = slot_count + judges.count + SPARE_PLACES
        self._turns = Turns(place_count, admission, limits.queue_ms)
        self._validation = Validation(
            limits, admission, judges, kept, requests, self._check, self._case_job, self._turns
        )

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods of the schema."""
        behaviors: dict[str, Callable[..., Awaitable[Any]]] = {
            "Execute": self.execute,
            "ExecuteShared": self.execute_shared,
            "ExecuteMany": self.execute_many,
            "Validate": self.validate,
            "Plan": self.plan,
            "GetServerInfo": self.get_server_info,
            "GetErrorText": self.get_error_text,
            **{name: self._at_once(method) for name, method in self._methods.items()},
        }
        return service_handlers(
            wire.SERVICE_NAME, wire.methods, behaviors, self._requests, self._limits.stream_idle_ms
        )

    async def execute(self, _: Any, context: Context) -> None:
        """Serve one Execute stream."""
        stream = ExecuteStream(context, self._limits)
        header = await stream.header()
        checked = self._check(wire.call_from_header(header, self._limits))
        region = wire.region_from_header(header)
        order = self._order(checked)
        if region is None:
            job = self._job(order, context)
        else:
            job = self._leased_job(order, context, region)
        with self._admission.entered(job):
            await self._admission.wait(job, JobState.UPLOADING, stream.report)
            await stream.report(job)
            started_s = time.monotonic()
            await stream.receive(job)
            upload_s = time.monotonic() - started_s
            execution, digests = await self._run(job, upload_s, stream.report)
            await stream.send(job, execution, digests)

    async def execute_shared(
        self, request: pb.ExecuteSharedRequest, context: Context
    ) -> pb.ExecuteSharedResponse:
        """Serve ExecuteShared: a call whose inputs are there, and whose outputs stay there."""
        wire.refuse_unknown_fields(request, deep=False)
        header = request.header
        region = wire.region_from_header(header)
        if region is None:
            raise Problem(
                Reason.ARENA_INVALID,
                "arena is missing; without one, the method is Execute",
                argument="arena",
            )
        header.ClearField("arena")
        key = header.SerializeToString(deterministic=True)
        order = self._shared.get(key)
        if order is None:
            order = self._order(self._check(wire.call_from_header(header, self._limits)))
            self._shared.keep(key, order)
        current_served().operator = order.checked.call.operator.name
        job = self._leased_job(order, context, region)
        with self._admission.entered(job):
            await self._admission.wait(job, JobState.UPLOADING)
            execution, digests = await self._run(job, 0.0)
            result = wire.result_message(job.checked.outputs, execution, digests)
            return pb.ExecuteSharedResponse(result=result)

    async def execute_many(self, _: Any, context: Context) -> None:
        """Serve one ExecuteMany stream."""
        behaviors = {
            operator.python_name: self._in_turn(self._methods[operator.name])
            for operator in OPERATORS.values()
        }
        await ManyCalls(context, self._limits, self._requests, behaviors).lead()

    async def validate(self, _: Any, context: Context) -> None:
        """Serve one Validate stream."""
        await self._validation.serve(context)

    async def plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        """Serve Plan: the contract, the limits and the device's own first stage, no data."""
        checked = self._check(wire.call_from_plan_request(request, self._limits))
        assert checked.plan is not None  # noqa: S101 - a plan request is always checked
        job = self._job(self._order(checked, plan_only=True), context)
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
                    operator_package=job.backend_info.package_of(checked.call.operator.name),
                )
        return wire.plan_response(found, current_request_id())

    async def get_server_info(
        self, request: pb.GetServerInfoRequest, _: Context
    ) -> pb.GetServerInfoResponse:
        """Serve GetServerInfo."""
        identity, info = current_identity(), self._describe()
        return wire.server_info_message(
            replace(
                info,
                tenant=identity.tenant,
                role=identity.role.word,
                limits=self._admission.limits_of(identity.tenant),
            )
        )

    async def get_error_text(
        self, request: pb.GetErrorTextRequest, _: Context
    ) -> pb.GetErrorTextResponse:
        """Serve GetErrorText."""
        return pb.GetErrorTextResponse(
            text=self._texts.find(request.request_id, current_identity())
        )

    def _at_once(self, method: UnaryMethod) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """Return what serves a unary call: it enters the lines at once, or is refused."""

        async def execute(frame: bytes, context: Context) -> bytes:
            order, data = method.take(method.part(frame))
            job = self._job(order, context)
            with self._admission.entered(job):
                return await self._executed(method, job, data)

        return execute

    def _in_turn(self, method: UnaryMethod) -> Behavior:
        """Return what serves a call of a stream of many: it waits for its turn."""

        async def execute(request: Message, context: Context, owner: object) -> bytes:
            order, data = method.take(wire.part_message(request))
            job = self._job(order, context, priority=Priority.BATCH)
            async with self._turns.entered(job, owner):
                return await self._executed(method, job, data)

        return execute

    async def _executed(
        self, method: UnaryMethod, job: Job, data: Mapping[str, memoryview]
    ) -> bytes:
        """Execute a job that has entered and whose data are here; return the response."""
        await self._admission.wait(job, JobState.UPLOADING)
        assert job.arena is not None  # noqa: S101 - it is reserved
        for name, payload in data.items():
            at = job.placement.inputs[name]
            job.arena.view[at : at + len(payload)] = payload
        return method.response(job, *await self._run(job, 0.0))

    def _check(self, call: Call) -> CheckedCall:
        current_served().operator = call.operator.name
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

    def _order(
        self,
        checked: CheckedCall,
        *,
        plan_only: bool = False,
        placement: Placement | None = None,
    ) -> Order:
        package = checked.call.operator_package or self._packages.default
        described = self._packages.describe(package)
        return Order(checked, described, plan_only=plan_only, placement=placement)

    def _job(
        self,
        order: Order,
        context: Context,
        lease: Lease | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> Job:
        served = current_served()
        job = Job(
            order,
            current_identity(),
            _client_of(context),
            served.request_id,
            context.done,
            priority,
            lease,
            device_lease=_metadata(context, wire.DEVICE_LEASE_KEY),
            stream_id="" if served.parent is None else served.parent.request_id,
        )
        served.operator, served.job = order.checked.call.operator.name, job
        return job

    def _leased_job(self, order: Order, context: Context, region: ArenaRegion) -> Job:
        placement = order.work.placement
        lease = self._leases.find(region, placement.size_bytes)
        if region.offset_bytes:
            moved = placement.moved(region.offset_bytes)
            order = self._order(order.checked, placement=moved)
        return self._job(order, context, lease)

    def _case_job(self, checked: CheckedCall, context: Context, placement: Placement) -> Job:
        order = self._order(checked, placement=placement)
        return self._job(order, context, priority=Priority.BATCH)

    async def _run(
        self, job: Job, upload_s: float, report: Callable[[Job], Awaitable[None]] | None = None
    ) -> tuple[Execution, dict[str, bytes]]:
        await self._admission.body_complete(job)
        await self._admission.wait(job, JobState.DONE, report)
        assert isinstance(job.outcome, RunReply)  # noqa: S101 - wait raises any problem
        assert job.worker is not None  # noqa: S101 - it ran there
        timings = job.outcome.timings
        execution = describe_execution(job, upload_s)
        tell(
            operator=job.checked.call.operator.name,
            worker=job.worker.name,
            device=execution.device,
            operator_package=execution.operator_package.name,
            package_digest=execution.operator_package.digest,
            upload_bytes=job.checked.input_bytes,
            download_bytes=job.checked.output_bytes,
            shared_memory=execution.shared_memory,
            queue_ms=round(job.waited_s * 1000, 3),
            upload_ms=round(upload_s * 1000, 3),
            kernel_ms=[round(ns / 1e6, 3) for ns in timings.kernel_ns],
        )
        return execution, dict(job.outcome.digests)


def _metadata(context: Context, key: str) -> str:
    """Return a request's metadata of a key, "" if it has none."""
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else value.decode()
    return ""


def _client_of(context: Context) -> str:
    """Return the tenant's connection as the client, or where they look alike, the request."""
    peer = context.peer()
    if not peer.startswith(("ipv4:", "ipv6:")):
        return current_request_id()
    # behind a proxy many tenants have one connection
    return f"{current_identity().tenant} {peer}"
