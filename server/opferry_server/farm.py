"""The farm service: who waits and runs here, ending requests, and leases of devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc

from opferry import wire
from opferry.core.problems import Problem, Reason
from opferry.v1 import farm_service_pb2 as pb
from opferry_server.admission import Admission
from opferry_server.device_leases import DeviceLease
from opferry_server.handlers import service_handlers
from opferry_server.identity import Identity
from opferry_server.jobs import Job, JobState
from opferry_server.requests import Requests, current_request_id, tell
from opferry_server.served import current_identity
from opferry_server.streams import Context, in_time
from opferry_server.timeouts import timeout

_STATES = {
    JobState.WAITING_FOR_MEMORY: pb.RequestInfo.STATE_WAITING_FOR_MEMORY,
    JobState.UPLOADING: pb.RequestInfo.STATE_UPLOADING,
    JobState.WAITING_FOR_WORKER: pb.RequestInfo.STATE_WAITING_FOR_DEVICE,
    JobState.RUNNING: pb.RequestInfo.STATE_RUNNING,
}

TELL_PERIOD_S = 10.0
"""How often a lease's holder is told that it still has it: a connection without traffic may be
closed on the way."""


class FarmService:
    """The methods of opferry.v1.FarmService."""

    def __init__(
        self, admission: Admission, requests: Requests, server_id: str, idle_ms: int
    ) -> None:
        """Serve calls.

        Args:
            admission: the lines that requests pass.
            requests: what is around every request.
            server_id: the server's id.
            idle_ms: how long a peer may take until its request is here.
        """
        self._idle_ms = idle_ms
        self._admission = admission
        self._requests = requests
        self._server_id = server_id

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all methods of the schema."""
        behaviors: dict[str, Callable[..., Awaitable[Any]]] = {
            "ListRequests": self.list_requests,
            "CancelRequest": self.cancel_request,
            "LeaseDevice": self.lease_device,
        }
        return service_handlers(
            wire.FARM_SERVICE_NAME, wire.farm_methods, behaviors, self._requests, self._idle_ms
        )

    async def list_requests(
        self, request: pb.ListRequestsRequest, _: Context
    ) -> pb.ListRequestsResponse:
        """Serve ListRequests."""
        identity = current_identity()
        return pb.ListRequestsResponse(
            server_id=self._server_id,
            requests=[self._request_info(job, identity) for job in self._admission.jobs()],
            device_leases=[
                _lease_info(lease, identity) for lease in self._admission.device_leases.all()
            ],
        )

    async def cancel_request(
        self, request: pb.CancelRequestRequest, _: Context
    ) -> pb.CancelRequestResponse:
        """Serve CancelRequest: a request by its own id, or a stream of many with all of them."""
        identity, request_id = current_identity(), request.request_id
        tell(cancelled=request_id[:128])
        for job in self._admission.jobs():
            if job.request_id == request_id and identity.owns(job.tenant):
                return pb.CancelRequestResponse(running=self._admission.cancel(job))
        if self._requests.cancel(request_id, identity):
            return pb.CancelRequestResponse()
        raise Problem(
            Reason.REQUEST_UNKNOWN,
            f"no request {request_id[:128]!r} of your tenant is inside this server; it may have "
            "ended, or be another server's",
            argument="request_id",
            given=request_id[:128],
        )

    async def lease_device(self, request: pb.LeaseDeviceRequest, context: Context) -> None:
        """Serve LeaseDevice: it lasts as long as the stream, but no longer than its time."""
        leases = self._admission.device_leases
        lease = leases.enter(
            current_identity(),
            request.device_kind,
            request.duration_ms / 1000,
            current_request_id(),
        )
        try:
            while not lease.over:
                lease.changed.clear()
                reply = _lease_reply(lease)
                await in_time(context.write(reply), self._idle_ms, "read")
                with suppress(asyncio.TimeoutError):
                    async with timeout(TELL_PERIOD_S):
                        await lease.changed.wait()
                leases.check_going_on(lease)
        finally:
            leases.leave(lease)

    def _request_info(self, job: Job, identity: Identity) -> pb.RequestInfo:
        """Return what somebody may know of a job: its ids are its tenant's."""
        state = _STATES[job.state]
        if self._admission.waits_for_device(job):
            state = pb.RequestInfo.STATE_WAITING_FOR_DEVICE
        own = identity.owns(job.tenant)
        return pb.RequestInfo(
            request_id=job.request_id if own else "",
            stream_id=job.stream_id if own else "",
            tenant=job.tenant,
            operator=job.checked.call.operator.name,
            operator_package=job.package.name,
            state=state,
            position=job.position,
            expected_wait_ms=round(job.expected_wait_s * 1000),
            age_ms=round((time.monotonic() - job.entered_s) * 1000),
            worker=job.worker.name if job.worker is not None else "",
            priority=job.priority.value,
            data_bytes=job.checked.input_bytes + job.checked.output_bytes,
        )


def _lease_info(lease: DeviceLease, identity: Identity) -> pb.DeviceLeaseInfo:
    return pb.DeviceLeaseInfo(
        request_id=lease.request_id if identity.owns(lease.tenant) else "",
        tenant=lease.tenant,
        worker="" if lease.worker is None else lease.worker.name,
        left_ms=round(lease.left_s * 1000),
    )


def _lease_reply(lease: DeviceLease) -> pb.LeaseDeviceResponse:
    reply = pb.LeaseDeviceResponse(position=lease.position, left_ms=round(lease.left_s * 1000))
    if lease.granted and lease.worker is not None:
        reply.token = lease.token
        reply.worker = lease.worker.name
        if lease.worker.info is not None:
            reply.device = lease.worker.info.device
            reply.soc_name = lease.worker.info.soc_name
    return reply
