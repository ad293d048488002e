"""What can go wrong, in one table: reason, gRPC status, the client's exception, safe to retry.

Both sides use it. Whatever finds a fault raises a `Problem`; the server turns it into a gRPC status
with a google.rpc.ErrorInfo, the client turns that, or its own Problem, into an exception of
`opferry.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

ACLNN_ERR_PARAM_NULLPTR = 161001
"""CANN's status for a required tensor that is null."""

ACLNN_ERR_PARAM_INVALID = 161002
"""CANN's status for any other argument that the first stage refuses."""


class StatusCode(IntEnum):
    """gRPC's status codes by number, so that nobody needs grpc to name one."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(str, Enum):
    """Why a request was refused or failed. The value is ErrorInfo.reason on the wire."""

    TENSOR_MALFORMED = "TENSOR_MALFORMED"
    INPUT_MISSING = "INPUT_MISSING"
    INPUT_UNKNOWN = "INPUT_UNKNOWN"
    SHAPE_MISMATCH = "SHAPE_MISMATCH"
    DTYPE_NOT_ALLOWED = "DTYPE_NOT_ALLOWED"
    ENUM_NOT_SET = "ENUM_NOT_SET"
    ENUM_UNKNOWN = "ENUM_UNKNOWN"
    ATTRIBUTE_INVALID = "ATTRIBUTE_INVALID"
    LAYOUT_NOT_SUPPORTED = "LAYOUT_NOT_SUPPORTED"
    ROTARY_MODE_NOT_SUPPORTED = "ROTARY_MODE_NOT_SUPPORTED"
    REFUSED_BY_DEVICE = "REFUSED_BY_DEVICE"
    OPERATOR_NOT_SUPPORTED = "OPERATOR_NOT_SUPPORTED"
    OPERATOR_PACKAGE_UNKNOWN = "OPERATOR_PACKAGE_UNKNOWN"
    OPERATOR_PACKAGE_NOT_READY = "OPERATOR_PACKAGE_NOT_READY"
    TENSOR_TOO_LARGE = "TENSOR_TOO_LARGE"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    FIELD_UNKNOWN = "FIELD_UNKNOWN"
    STREAM_PROTOCOL = "STREAM_PROTOCOL"
    SERVER_BUSY = "SERVER_BUSY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    DEVICE_MEMORY_EXHAUSTED = "DEVICE_MEMORY_EXHAUSTED"
    DEVICE_FAULT = "DEVICE_FAULT"
    OPERATOR_FAILED = "OPERATOR_FAILED"
    NOT_DETERMINISTIC = "NOT_DETERMINISTIC"
    REQUEST_POISONED = "REQUEST_POISONED"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    RECIPE_MISMATCH = "RECIPE_MISMATCH"
    STREAM_IDLE = "STREAM_IDLE"
    QUEUE_DEADLINE = "QUEUE_DEADLINE"
    RUN_DEADLINE = "RUN_DEADLINE"
    CANCELLED = "CANCELLED"
    REQUEST_UNKNOWN = "REQUEST_UNKNOWN"
    DEVICE_LEASE_EXPIRED = "DEVICE_LEASE_EXPIRED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_IN_USE = "LEASE_IN_USE"
    ARENA_INVALID = "ARENA_INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    ERROR_TEXT_UNKNOWN = "ERROR_TEXT_UNKNOWN"
    SERVER_DEFECT = "SERVER_DEFECT"


@dataclass(frozen=True)
class ReasonRule:
    """One row of the table."""

    status: StatusCode
    """The gRPC status that goes with the reason."""
    error: str
    """The name of the client's exception in `opferry.errors`."""
    may_retry: bool = False
    """Whether sending the same request again is safe and may succeed."""


def _caller(error: str, status: StatusCode = StatusCode.INVALID_ARGUMENT) -> ReasonRule:
    return ReasonRule(status, error)


_BUSY = "ServerBusyError"

RULES: Mapping[Reason, ReasonRule] = {
    Reason.TENSOR_MALFORMED: _caller("InvalidTensorError"),
    Reason.INPUT_MISSING: _caller("ContractError"),
    Reason.INPUT_UNKNOWN: _caller("ContractError"),
    Reason.SHAPE_MISMATCH: _caller("ContractError"),
    Reason.DTYPE_NOT_ALLOWED: _caller("ContractError"),
    Reason.ENUM_NOT_SET: _caller("ContractError"),
    Reason.ENUM_UNKNOWN: _caller("ContractError"),
    Reason.ATTRIBUTE_INVALID: _caller("ContractError"),
    Reason.LAYOUT_NOT_SUPPORTED: _caller("ContractError"),
    Reason.ROTARY_MODE_NOT_SUPPORTED: _caller("ContractError"),
    Reason.REFUSED_BY_DEVICE: _caller("ContractError"),
    Reason.OPERATOR_NOT_SUPPORTED: _caller("NotSupportedError", StatusCode.UNIMPLEMENTED),
    Reason.OPERATOR_PACKAGE_UNKNOWN: _caller("NotSupportedError", StatusCode.FAILED_PRECONDITION),
    Reason.OPERATOR_PACKAGE_NOT_READY: ReasonRule(StatusCode.FAILED_PRECONDITION, "OperatorError"),
    Reason.TENSOR_TOO_LARGE: _caller("TooLargeError"),
    Reason.LIMIT_EXCEEDED: _caller("TooLargeError"),
    Reason.FIELD_UNKNOWN: _caller("ProtocolError"),
    Reason.STREAM_PROTOCOL: _caller("ProtocolError"),
    Reason.SERVER_BUSY: ReasonRule(StatusCode.UNAVAILABLE, _BUSY, may_retry=True),
    Reason.SHUTTING_DOWN: ReasonRule(StatusCode.UNAVAILABLE, _BUSY, may_retry=True),
    Reason.QUOTA_EXCEEDED: ReasonRule(StatusCode.RESOURCE_EXHAUSTED, _BUSY, may_retry=True),
    Reason.DEVICE_MEMORY_EXHAUSTED: ReasonRule(StatusCode.RESOURCE_EXHAUSTED, "DeviceMemoryError"),
    Reason.DEVICE_FAULT: ReasonRule(StatusCode.INTERNAL, "DeviceFaultError"),
    Reason.OPERATOR_FAILED: ReasonRule(StatusCode.INTERNAL, "OperatorError"),
    Reason.NOT_DETERMINISTIC: ReasonRule(StatusCode.INTERNAL, "OperatorError"),
    Reason.REQUEST_POISONED: ReasonRule(StatusCode.FAILED_PRECONDITION, "DeviceFaultError"),
    Reason.CHECKSUM_MISMATCH: ReasonRule(StatusCode.DATA_LOSS, "InvalidTensorError"),
    Reason.RECIPE_MISMATCH: ReasonRule(StatusCode.DATA_LOSS, "InvalidTensorError"),
    Reason.STREAM_IDLE: ReasonRule(StatusCode.DEADLINE_EXCEEDED, "DeadlineError"),
    Reason.QUEUE_DEADLINE: ReasonRule(StatusCode.DEADLINE_EXCEEDED, "DeadlineError"),
    Reason.RUN_DEADLINE: ReasonRule(StatusCode.DEADLINE_EXCEEDED, "DeadlineError"),
    Reason.CANCELLED: ReasonRule(StatusCode.CANCELLED, "CallCancelledError"),
    Reason.REQUEST_UNKNOWN: _caller("RequestError", StatusCode.NOT_FOUND),
    Reason.DEVICE_LEASE_EXPIRED: ReasonRule(StatusCode.FAILED_PRECONDITION, "RequestError"),
    Reason.LEASE_EXPIRED: ReasonRule(StatusCode.FAILED_PRECONDITION, "RequestError"),
    Reason.LEASE_IN_USE: ReasonRule(StatusCode.FAILED_PRECONDITION, "RequestError"),
    Reason.ARENA_INVALID: _caller("ProtocolError"),
    Reason.UNAUTHENTICATED: ReasonRule(StatusCode.UNAUTHENTICATED, "AccessError"),
    Reason.PERMISSION_DENIED: ReasonRule(StatusCode.PERMISSION_DENIED, "AccessError"),
    Reason.ERROR_TEXT_UNKNOWN: _caller("RequestError", StatusCode.NOT_FOUND),
    Reason.SERVER_DEFECT: ReasonRule(StatusCode.INTERNAL, "ServerError"),
}


class Problem(Exception):  # noqa: N818 - it becomes an error of opferry.errors, or a status
    """A fault with everything that is known of it.

    Wording of *message*: what was given, what is allowed, what to do; lower case start, no trailing
    dot, names in the caller's words.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        argument: str | None = None,
        given: str | None = None,
        allowed: str | None = None,
        aclnn_status: int | None = None,
        acl_error: int | None = None,
        stage: str | None = None,
        soc: str | None = None,
        cann_version: str | None = None,
        operator_package: str | None = None,
        library_file: str | None = None,
        status: StatusCode | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Describe a fault.

        Args:
            reason: the row of the table.
            message: the sentence for a person.
            argument: the operator's parameter, or the option or field, at fault.
            given: what the caller gave for it.
            allowed: what it may be.
            aclnn_status: CANN's status of the first or second stage, for example 161002.
            acl_error: CANN's runtime error, for example 507015.
            stage: where it happened, for example "stage_one".
            soc: the device's system on chip.
            cann_version: the version of CANN that ran it.
            operator_package: the operator package that ran it: its name, and its library's digest.
            library_file: the library that supplied the operator.
            status: the gRPC status where it differs from the table's.
            retry_after_s: seconds after which another try makes sense.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.argument = argument
        self.given = given
        self.allowed = allowed
        self.aclnn_status = aclnn_status
        self.acl_error = acl_error
        self.stage = stage
        self.soc = soc
        self.cann_version = cann_version
        self.operator_package = operator_package
        self.library_file = library_file
        self.status = status if status is not None else RULES[reason].status
        self.retry_after_s = retry_after_s

    def to_fields(self) -> dict[str, Any]:
        """Return the problem as plain values, for a process boundary; see `from_fields`."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        # what add_note leaves is no field of ours
        fields.pop("__notes__", None)
        return {**fields, "reason": self.reason.value, "status": int(self.status)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Problem:
        """Rebuild a problem from `to_fields`."""
        rest = {name: fields[name] for name in fields if name not in ("reason", "status")}
        return cls(Reason(fields["reason"]), status=StatusCode(fields["status"]), **rest)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Problem.from_fields, (self.to_fields(),))
