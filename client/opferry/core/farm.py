"""What a server says of the requests inside it, and of leases of its devices."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LEASE_S = 600.0
"""How long a lease of a device lasts where nothing else is said, in seconds."""


@dataclass(frozen=True)
class RequestInfo:
    """A request inside a server."""

    request_id: str
    """The server's id of it; empty for another tenant's, unless an admin asks."""
    stream_id: str
    """The id of the stream of many that it came by; empty for none, and as `request_id`."""
    tenant: str
    """Whose it is."""
    operator: str
    """The operator's name."""
    operator_package: str
    """The operator package that is to run it."""
    state: str
    """"waiting for memory", "uploading", "waiting for a device" or "running"."""
    position: int
    """The requests that are expected to run before it, while it waits."""
    expected_wait_s: float
    """How long it is expected to wait yet, in seconds."""
    age_s: float
    """How long it is inside, in seconds."""
    worker: str
    """The worker that runs it; empty while it waits."""
    priority: str
    """"interactive" or "batch"."""
    data_bytes: int
    """The bytes of its inputs and outputs."""


@dataclass(frozen=True)
class DeviceLeaseInfo:
    """A lease of a device, granted or waiting."""

    tenant: str
    """Whose it is."""
    worker: str
    """The worker of the leased device; empty while it waits."""
    left_s: float
    """How long it lasts yet, in seconds."""
    request_id: str = ""
    """The server's id of the request for it, by which it is ended; empty as for a request."""


@dataclass(frozen=True)
class Queue:
    """The requests inside a server, those that run first, then as they are to run."""

    server_id: str
    """The server's id, with which the ids of its requests begin."""
    requests: tuple[RequestInfo, ...]
    """The requests."""
    device_leases: tuple[DeviceLeaseInfo, ...]
    """The leases of devices, those that are granted first."""


@dataclass(frozen=True)
class DeviceLease:
    """A device of one's own, as long as the lease lasts."""

    token: str
    """What requests carry that are to run on it: see `opferry.connect`."""
    worker: str
    """The worker of the device."""
    device: str
    """The device, for example "npu:0"."""
    soc_name: str
    """The system on chip as the runtime names it; empty for the CPU."""
    left_s: float
    """How long it lasts from its grant on, in seconds."""

    @property
    def server_id(self) -> str:
        """The server of the device, which takes the token."""
        return self.token.rpartition(":")[0]

    def __repr__(self) -> str:
        return f"DeviceLease(worker={self.worker!r}, device={self.device!r})"
