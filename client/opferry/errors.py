"""The errors that opferry raises.

    OpFerryError
     +-- RequestError            the caller's fault; also a ValueError
     |    +-- ContractError           a rule of the operator is broken
     |    +-- InvalidTensorError      a tensor's data, shape or strides do not fit together
     |    +-- TooLargeError           over a limit of the server
     |    +-- ProtocolError           the stream of frames is not as the schema says
     |    +-- NotSupportedError       unknown to this server, or not on its device
     |    +-- NotDifferentiableError  there is no such derivative; also a NotImplementedError
     |    +-- AccessError             not authenticated, or not permitted
     +-- ServerError             the server's or the device's; also a RuntimeError
     |    +-- ServerBusyError         full or shutting down; trying again later makes sense
     |    +-- DeviceMemoryError       the device has no memory left
     |    +-- DeviceFaultError        the device or its process broke
     |    +-- OperatorError           the operator failed
     +-- TransportError          no answer from the server; also a ConnectionError
     +-- DeadlineError           the time was over; also a TimeoutError
     +-- CallCancelledError      somebody ended the call, by `opferry cancel`

Every error carries fields; texts are for people. gRPC's own errors are translated here and nowhere
else, with the cause kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opferry.core.problems import RULES, Problem, Reason, StatusCode

if TYPE_CHECKING:
    import grpc

__all__ = [
    "AccessError",
    "CallCancelledError",
    "ContractError",
    "DeadlineError",
    "DeviceFaultError",
    "DeviceMemoryError",
    "InvalidTensorError",
    "NotDifferentiableError",
    "NotSupportedError",
    "OpFerryError",
    "OperatorError",
    "ProtocolError",
    "RequestError",
    "ServerBusyError",
    "ServerError",
    "TooLargeError",
    "TransportError",
]


_LOOKS_LIKE_TLS = re.compile("Socket closed|Connection reset")
"""What a client in clear hears of a server that wants TLS, and of other ends of connections."""

_PROXY_LOST_SERVER = re.compile(r"RST_STREAM with error code (0|2|10)\b")
"""What gRPC makes of a stream that a proxy resets because its connection to the server broke: the
codes NO_ERROR, INTERNAL_ERROR and CONNECT_ERROR. Without a proxy that would be UNAVAILABLE. Other
codes say that the stream itself is at fault, and would be again."""


class OpFerryError(Exception):
    """The root of all errors of opferry.

    Attributes:
        message: the sentence for a person.
        reason: why, for example "SHAPE_MISMATCH"; None if the error did not come from opferry.
        status: the canonical gRPC status, a `StatusCode`.
        aclnn_status: CANN's status of the operator's stages, for example 161002, or None.
        acl_error: CANN's runtime error, for example 507015, or None.
        argument: the operator's parameter, or the option, at fault, or None.
        given: what was given for it, or None.
        allowed: what it may be, or None.
        stage: where it happened, or None.
        soc: the device's system on chip, or None.
        cann_version: the version of CANN that ran it, or None.
        operator_package: the operator package that ran it, "name sha256:digest", or None.
        library_file: the library that supplied the operator, on the server, or None.
        request_id: the server's id of the request; "" if it never reached a server.
        retry_after_s: seconds after which another try makes sense, or None.
        may_retry: whether sending the same request again is safe and may succeed.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        status: StatusCode = StatusCode.UNKNOWN,
        aclnn_status: int | None = None,
        acl_error: int | None = None,
        argument: str | None = None,
        given: str | None = None,
        allowed: str | None = None,
        stage: str | None = None,
        soc: str | None = None,
        cann_version: str | None = None,
        operator_package: str | None = None,
        library_file: str | None = None,
        request_id: str = "",
        retry_after_s: float | None = None,
        may_retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.status = status
        self.aclnn_status = aclnn_status
        self.acl_error = acl_error
        self.argument = argument
        self.given = given
        self.allowed = allowed
        self.stage = stage
        self.soc = soc
        self.cann_version = cann_version
        self.operator_package = operator_package
        self.library_file = library_file
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.may_retry = may_retry

    def __str__(self) -> str:
        notes = []
        if self.reason is not None:
            notes.append(self.reason)
        if self.aclnn_status is not None:
            notes.append(f"aclnn status {self.aclnn_status}")
        if self.acl_error is not None:
            notes.append(f"acl error {self.acl_error}")
        if self.request_id:
            notes.append(f"request {self.request_id}")
        return f"{self.message} [{', '.join(notes)}]" if notes else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(vars(self))
        # what add_note leaves is no argument of the constructor
        notes = {name: fields.pop(name) for name in ("__notes__",) if name in fields}
        return (_rebuild, (type(self), fields.pop("message"), fields), notes or None)


def _rebuild(error: type[OpFerryError], message: str, fields: dict[str, Any]) -> OpFerryError:
    return error(message, **fields)


class RequestError(OpFerryError, ValueError):
    """The request cannot be served as it is; sending it again will not help."""


class ContractError(RequestError):
    """A rule of the operator is broken; `argument` names the input or attribute."""


class InvalidTensorError(RequestError):
    """A tensor's data, shape, strides or digest do not fit together."""


class TooLargeError(RequestError):
    """A tensor or the request is over a limit of the server; `given` and `allowed` say by what."""


class ProtocolError(RequestError):
    """The frames are not as the schema says: a gap, an overlap, an unknown field."""


class NotSupportedError(RequestError):
    """The operator or its package is unknown to this server, or not for its device."""


class NotDifferentiableError(RequestError, NotImplementedError):
    """There is no operator for this derivative; so also a RuntimeError, as torch's own error is."""


class AccessError(RequestError):
    """The caller is not authenticated, or not permitted to do this."""


class ServerError(OpFerryError, RuntimeError):
    """The server or its device failed."""


class ServerBusyError(ServerError):
    """The server is full or shutting down; `retry_after_s` is its hint."""


class DeviceMemoryError(ServerError):
    """The device has no memory left for the request."""


class DeviceFaultError(ServerError):
    """The device or its worker process broke while it ran the request."""


class OperatorError(ServerError):
    """The operator itself failed."""


class TransportError(OpFerryError, ConnectionError):
    """The server could not be reached, or the connection broke."""


class DeadlineError(OpFerryError, TimeoutError):
    """The time for the call, the queue or the run was over."""


class CallCancelledError(OpFerryError):
    """Somebody who may ended the call, by `opferry cancel`, before it was done."""


_CLASSES: dict[str, type[OpFerryError]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, OpFerryError)
}


def from_problem(problem: Problem, request_id: str = "") -> OpFerryError:
    """Return the error of a problem that this process, or a server, found."""
    rule = RULES[problem.reason]
    fields = problem.to_fields()
    del fields["message"]
    return _CLASSES[rule.error](
        problem.message,
        **{**fields, "status": problem.status},
        request_id=request_id,
        may_retry=rule.may_retry,
    )


def from_rpc_error(
    error: grpc.RpcError, target: str, proxy: str | None = None, *, encrypted: bool = True
) -> OpFerryError:
    """Return the error of a failed gRPC call; raise it `from` the original.

    Args:
        error: what grpc or grpc.aio raised.
        target: the address that was called, for the text.
        proxy: the proxy through which it was called, for the text.
        encrypted: whether the connection has TLS, which its want may be the reason of.
    """
    from opferry import wire

    code, text = error.code(), error.details() or ""
    status = StatusCode(code.value[0])
    rich = _rich_status(error)
    if rich is not None and (found := wire.problem_from_status(rich)) is not None:
        return from_problem(*found)
    via = f" through the proxy {proxy}" if proxy else ""
    said = f"{target}{via}: {status.name}: {text}" if text else f"{target}{via}: {status.name}"
    if not encrypted and _LOOKS_LIKE_TLS.search(text) is not None:
        said += "; if the server uses TLS, give tls=, OPFERRY_TLS_AUTHORITIES or a context"
    if status is StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(said, status=status)
    if status in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
        # of something on the way: opferry's own servers say more
        return AccessError(said, status=status)
    if status is StatusCode.UNIMPLEMENTED:
        return NotSupportedError(
            f"{said}; whoever listens there does not know the call: an opferry server of an older "
            "release, which is to be updated, or something else",
            status=status,
        )
    # A server that is told to stop, or killed, cancels what it has not begun or will not end. What
    # somebody cancelled on purpose, with `opferry cancel`, has said so above.
    lost = status in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED) or (
        status is StatusCode.INTERNAL and _PROXY_LOST_SERVER.search(text) is not None
    )
    return TransportError(said, status=status, may_retry=lost)


def _rich_status(error: Any) -> Any:
    from google.protobuf.message import DecodeError
    from grpc_status import rpc_status

    try:
        return rpc_status.from_call(error)
    except (ValueError, DecodeError):
        # parts that contradict each other, or bytes that are no status: not one of ours
        return None


def closed(target: str) -> TransportError:
    """Return the error of a call on a client that was closed."""
    return TransportError(
        f"the client of {target} is closed; connect again", status=StatusCode.CANCELLED
    )


def silent(silence_s: float) -> DeadlineError:
    """Return the error of a server that has said nothing for *silence_s* seconds."""
    text = f"the server has said nothing for {silence_s:g} s"
    return DeadlineError(text, status=StatusCode.DEADLINE_EXCEEDED)


def unreadable(problem: Problem) -> OpFerryError:
    """Return the error of a reply that is not as the schema says."""
    return TransportError(
        f"the server's reply is unreadable: {problem.message}",
        reason=Reason.STREAM_PROTOCOL.value,
        status=StatusCode.INTERNAL,
    )


def from_status(data: bytes) -> OpFerryError:
    """Return the error of a serialised google.rpc.Status that came inside a message."""
    from google.protobuf.message import DecodeError
    from google.rpc import status_pb2

    from opferry import wire

    try:
        found = wire.problem_from_status(status_pb2.Status.FromString(data))
    except DecodeError:
        found = None
    if found is None:
        problem = Problem(Reason.STREAM_PROTOCOL, "a result's error is no status of opferry's")
        return unreadable(problem)
    return from_problem(*found)
