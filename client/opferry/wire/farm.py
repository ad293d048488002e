"""The farm service's messages, to vocabulary."""

from __future__ import annotations

from opferry.core.farm import DeviceLease, DeviceLeaseInfo, Queue, RequestInfo
from opferry.v1 import farm_service_pb2 as pb

_STATES = {
    pb.RequestInfo.STATE_WAITING_FOR_MEMORY: "waiting for memory",
    pb.RequestInfo.STATE_UPLOADING: "uploading",
    pb.RequestInfo.STATE_WAITING_FOR_DEVICE: "waiting for a device",
    pb.RequestInfo.STATE_RUNNING: "running",
}


def queue_from_message(message: pb.ListRequestsResponse) -> Queue:
    """Return the requests inside a server of its message."""
    return Queue(
        message.server_id,
        tuple(_request(each) for each in message.requests),
        tuple(
            DeviceLeaseInfo(each.tenant, each.worker, each.left_ms / 1000, each.request_id)
            for each in message.device_leases
        ),
    )


def device_lease_from_message(message: pb.LeaseDeviceResponse) -> DeviceLease | None:
    """Return a lease of its message; None while it waits."""
    if not message.token:
        return None
    return DeviceLease(
        message.token, message.worker, message.device, message.soc_name, message.left_ms / 1000
    )


def _request(message: pb.RequestInfo) -> RequestInfo:
    return RequestInfo(
        request_id=message.request_id,
        stream_id=message.stream_id,
        tenant=message.tenant,
        operator=message.operator,
        operator_package=message.operator_package,
        state=_STATES.get(message.state, "unknown"),
        position=message.position,
        expected_wait_s=message.expected_wait_ms / 1000,
        age_s=message.age_ms / 1000,
        worker=message.worker,
        priority=message.priority,
        data_bytes=message.data_bytes,
    )
