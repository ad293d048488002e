"""A `Problem` as google.rpc.Status and back, kept small enough for gRPC's trailers."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from opferry.core.problems import Problem, Reason, StatusCode

DOMAIN = "opferry"
"""ErrorInfo.domain of every error of this service."""

TEXT_COST_BYTES = 3600
"""What an error's text may take in the trailers. The soft limit for all metadata is 8 KiB; above
it gRPC drops the call's status for RESOURCE_EXHAUSTED."""

FIELD_BYTES = 200
"""The longest value in ErrorInfo.metadata."""

_TEXT_FIELDS = (
    *("argument", "given", "allowed", "stage"),
    *("soc", "cann_version", "operator_package", "library_file"),
)
_NUMBER_FIELDS = ("aclnn_status", "acl_error")


def _cost(character: str) -> float:
    """What a character takes: percent-encoded in grpc-message, and in the base64 of the details."""
    encoded = len(character.encode("utf-8", "replace"))
    plain = encoded == 1 and " " <= character <= "~" and character != "%"
    return (1 if plain else 3 * encoded) + encoded * 4 / 3


def shorten(text: str, request_id: str) -> str:
    """Return *text*, or as much of it as fits the trailers and a note of how to get the rest."""
    spent = 0.0
    for position, character in enumerate(text):
        spent += _cost(character)
        if spent > TEXT_COST_BYTES:
            note = f"... (truncated; full text by request id {request_id})"
            return text[:position] + note
    return text


def status_from_problem(problem: Problem, request_id: str) -> status_pb2.Status:
    """Return the status of a problem: canonical code, text, ErrorInfo and, if busy, RetryInfo."""
    metadata = {"request_id": request_id}
    for name in _TEXT_FIELDS:
        if (value := getattr(problem, name)) is not None:
            cut = str(value).encode("utf-8", "replace")[:FIELD_BYTES]
            metadata[name] = cut.decode("utf-8", "ignore")
    for name in _NUMBER_FIELDS:
        if (value := getattr(problem, name)) is not None:
            metadata[name] = str(value)
    # a lone surrogate cannot be sent
    text = problem.message.encode("utf-8", "replace").decode()
    status = status_pb2.Status(code=int(problem.status), message=shorten(text, request_id))
    info = error_details_pb2.ErrorInfo(
        reason=problem.reason.value, domain=DOMAIN, metadata=metadata
    )
    status.details.add().Pack(info)
    if problem.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(int(problem.retry_after_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def problem_from_status(status: status_pb2.Status) -> tuple[Problem, str] | None:
    """Return the problem and the request id of a status, or None if it is not one of ours."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after_s = None
    try:
        code = StatusCode(status.code)
        for detail in status.details:
            if detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
            else:
                detail.Unpack(info)
    except (ValueError, DecodeError):
        # a code that is none, or details that are not what they say
        return None
    if info.domain != DOMAIN or info.reason not in Reason.__members__:
        return None
    metadata = dict(info.metadata)
    problem = Problem(
        Reason(info.reason),
        status.message,
        status=code,
        retry_after_s=retry_after_s,
        **{name: metadata.get(name) for name in _TEXT_FIELDS},
        aclnn_status=_number(metadata.get("aclnn_status")),
        acl_error=_number(metadata.get("acl_error")),
    )
    return problem, metadata.get("request_id", "")


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
