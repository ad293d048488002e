"""The problems with which the server itself ends requests that are in order."""

from __future__ import annotations

from opferry.core.problems import Problem, Reason
from opferry.wire import DEVICE_LEASE_KEY


def shutting_down() -> Problem:
    """Return the problem of whoever asks a server that is about to end."""
    return Problem(
        Reason.SHUTTING_DOWN,
        "the server is shutting down; send the request again, to another server or later",
        retry_after_s=1.0,
    )


def ended_by_somebody() -> Problem:
    """Return the problem of a request that somebody who may has ended."""
    return Problem(
        Reason.CANCELLED,
        "somebody who may has ended the request; what its device runs is finished and dropped",
    )


def queued_too_long(queue_ms: int) -> Problem:
    """Return the problem of a request that has waited for *queue_ms* milliseconds."""
    return Problem(
        Reason.QUEUE_DEADLINE,
        f"the request waited longer than the server's limit of {queue_ms} ms",
        argument="queue_ms",
        allowed=str(queue_ms),
    )


def lease_expired() -> Problem:
    """Return the problem of a request whose lease of a device is not there any more."""
    return Problem(
        Reason.DEVICE_LEASE_EXPIRED,
        "the lease of a device that the request names is over, or is not the tenant's; lease one "
        "again, or send the request without it",
        argument=DEVICE_LEASE_KEY,
    )
