"""The errors that users see: the tree, their fields, and where gRPC's own errors end up."""

from __future__ import annotations

import copy
import pickle
import re

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2

from opferry import errors, wire
from opferry.core.problems import RULES, Problem, Reason, StatusCode

TREE = {name: getattr(errors, name) for name in errors.__all__}
TARGET = "host:50051"


def test_the_public_list_is_sorted_and_whole() -> None:
    """Every error class is in the public list, which holds nothing else."""
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value is not Problem
    }
    assert errors.__all__ == sorted(classes)


def test_the_drawing_shows_the_tree() -> None:
    """The tree in the module's header is the tree of the classes, and names all of them."""
    drawn: dict[str, str] = {}
    above = ["OpFerryError"]
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^ {4}( (?:\|    )*| {6}| {1})\+-- (\w+)", line):
            depth = 1 + len(found[1]) // 5
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1]
    real = {name: error.__bases__[0].__name__ for name, error in TREE.items()}
    del real["OpFerryError"]
    assert drawn == real


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        ("RequestError", ValueError),
        ("ServerError", RuntimeError),
        ("TransportError", ConnectionError),
        ("DeadlineError", TimeoutError),
    ],
)
def test_errors_are_also_the_built_in_ones(error: str, builtin: type[Exception]) -> None:
    """Whoever does not know opferry catches its errors by the built-in class."""
    assert issubclass(TREE[error], builtin)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_problem_becomes_the_error_of_its_rule(reason: Reason) -> None:
    """Class, status and whether to try again come from the table, the rest from the problem."""
    problem = Problem(reason, "it broke", argument="cos", given="1", allowed="2", soc="Ascend950")
    error = errors.from_problem(problem, "request-1")
    assert type(error) is TREE[RULES[reason].error]
    assert error.reason == reason.value
    assert (error.status, error.may_retry) == (RULES[reason].status, RULES[reason].may_retry)
    assert (error.argument, error.given, error.allowed) == ("cos", "1", "2")
    assert (error.soc, error.stage, error.request_id) == ("Ascend950", None, "request-1")


def test_the_text_ends_with_what_to_quote() -> None:
    """str() gives the sentence, and in brackets the codes that are known."""
    problem = Problem(Reason.DEVICE_FAULT, "it broke", aclnn_status=361001, acl_error=507015)
    error = errors.from_problem(problem, "request-1")
    assert error.message == "it broke"
    assert str(error) == (
        "it broke [DEVICE_FAULT, aclnn status 361001, acl error 507015, request request-1]"
    )
    assert str(errors.TransportError("no answer")) == "no answer"


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_cross_process_boundaries(name: str) -> None:
    """Every error is pickled and copied with all its fields, and with notes added to it."""
    error = TREE[name]("it broke", reason="R", status=StatusCode.ABORTED, argument="cos",
                       retry_after_s=1.5, request_id="request-1", may_retry=True)  # fmt: skip
    error.__notes__ = ["seen in the nightly run"]  # add_note is new in Python 3.11
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own
        assert type(twin) is type(error)
        assert (vars(twin), str(twin)) == (vars(error), str(error))


def _rpc_error(
    code: grpc.StatusCode, details: str | None = "said grpc", trailer: bytes | None = None
) -> grpc.aio.AioRpcError:
    pairs = [] if trailer is None else [("grpc-status-details-bin", trailer)]
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), details=details
    )


@pytest.mark.parametrize("reason", list(Reason))
def test_errors_from_a_server_are_those_of_its_problems(reason: Reason) -> None:
    """A problem that crossed the wire gives the error that it would give here."""
    problem = Problem(reason, "错误 100%", argument="cos", aclnn_status=161002, retry_after_s=0.25)
    status = wire.status_from_problem(problem, "request-1")
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    error = errors.from_rpc_error(
        _rpc_error(code, status.message, status.SerializeToString()), TARGET
    )
    expected = errors.from_problem(problem, "request-1")
    assert type(error) is type(expected)
    assert vars(error) == vars(expected)


FOREIGN = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.mark.parametrize("code", FOREIGN)
def test_errors_of_grpc_itself_are_the_transports(code: grpc.StatusCode) -> None:
    """Without our details, the code alone decides the class; only lost calls are tried again."""
    error = errors.from_rpc_error(_rpc_error(code), TARGET)
    special = {
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
        grpc.StatusCode.UNAUTHENTICATED: errors.AccessError,
        grpc.StatusCode.PERMISSION_DENIED: errors.AccessError,
        # a server that is older than the call
        grpc.StatusCode.UNIMPLEMENTED: errors.NotSupportedError,
    }
    assert type(error) is special.get(code, errors.TransportError)
    said = f"host:50051: {code.name}: said grpc"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        assert error.message.startswith(f"{said}; whoever listens there does not know the call")
    else:
        assert error.message == said
    assert (error.reason, error.request_id) == (None, "")
    assert error.status == code.value[0]
    assert error.may_retry == (code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))


@pytest.mark.parametrize(
    ("code", "may_retry"), [(0, True), (1, False), (2, True), (6, False), (10, True), (11, False)]
)
def test_a_stream_that_a_proxy_reset_is_tried_again(code: int, may_retry: bool) -> None:
    """A proxy that lost its server resets the stream; one that blames the stream does not help."""
    text = f"Stream removed (RST_STREAM (Received RST_STREAM with error code {code}))"
    error = errors.from_rpc_error(_rpc_error(grpc.StatusCode.INTERNAL, text), TARGET)
    assert type(error) is errors.TransportError
    assert error.may_retry is may_retry


def test_the_proxy_is_named() -> None:
    """An error that came through a proxy says which; an empty text leaves no colon behind."""
    error = errors.from_rpc_error(
        _rpc_error(grpc.StatusCode.UNAVAILABLE, None), TARGET, proxy="proxy.example:3128"
    )
    assert error.message == "host:50051 through the proxy proxy.example:3128: UNAVAILABLE"


STATUS = status_pb2.Status(code=13, message="said grpc")


@pytest.mark.parametrize(
    "trailer",
    [
        b"",
        b"\xff\xff\xff",
        STATUS.SerializeToString(),
        status_pb2.Status(code=3, message="said grpc").SerializeToString(),
        status_pb2.Status(code=13, message="said another").SerializeToString(),
        status_pb2.Status(code=99, message="said grpc").SerializeToString(),
    ],
    ids=["empty", "garbage", "no details", "another code", "another text", "no code of gRPC's"],
)
def test_details_that_are_not_ours_change_nothing(trailer: bytes) -> None:
    """Details that cannot be read, or contradict the call, leave the error that gRPC gave."""
    error = errors.from_rpc_error(
        _rpc_error(grpc.StatusCode.INTERNAL, "said grpc", trailer), TARGET
    )
    assert type(error) is errors.TransportError
    assert error.message == "host:50051: INTERNAL: said grpc"


def test_damaged_details_of_ours_change_nothing() -> None:
    """A status that is whole, but whose ErrorInfo is not, leaves the error that gRPC gave."""
    status = wire.status_from_problem(Problem(Reason.DEVICE_FAULT, "said grpc"), "request-1")
    status.details[0].value = b"\xff\xff\xff"
    error = errors.from_rpc_error(
        _rpc_error(grpc.StatusCode.INTERNAL, "said grpc", status.SerializeToString()), TARGET
    )
    assert type(error) is errors.TransportError


def test_errors_that_this_process_finds() -> None:
    """A closed client and an unreadable reply are errors of the transport, not to be retried."""
    closed = errors.closed(TARGET)
    assert type(closed) is errors.TransportError
    assert str(closed) == "the client of host:50051 is closed; connect again"
    unreadable = errors.unreadable(Problem(Reason.STREAM_PROTOCOL, "the frame is cut"))
    assert type(unreadable) is errors.TransportError
    assert unreadable.message == "the server's reply is unreadable: the frame is cut"
    assert not closed.may_retry
    assert not unreadable.may_retry
