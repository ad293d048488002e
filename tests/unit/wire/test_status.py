"""Problems as statuses: nothing is lost on the way, and nothing grows beyond the trailers."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from opferry import wire
from opferry.core.problems import Problem, Reason, StatusCode
from opferry.wire.status import DOMAIN, FIELD_BYTES, TEXT_COST_BYTES, shorten

TRAILER_BYTES = 7 * 1024
"""What message and details may take together; gRPC's soft limit for all metadata is 8 KiB."""

TEXT_FIELDS = (
    *("argument", "given", "allowed", "stage"),
    *("soc", "cann_version", "operator_package", "library_file"),
)
SHORT = st.none() | st.text(max_size=40)
NUMBER = st.none() | st.integers(-(2**31), 2**31)


def _percent_encoded(text: str) -> bytes:
    """Encode a text as gRPC sends a status message: all but printable ASCII, and %, as %XX."""
    return b"".join(
        bytes([byte]) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode()
    )


def _trailer_bytes(status: status_pb2.Status) -> int:
    details = base64.b64encode(status.SerializeToString())
    return len(_percent_encoded(status.message)) + len(details)


@given(
    reason=st.sampled_from(Reason),
    message=st.text(max_size=100),
    texts=st.tuples(*[SHORT] * len(TEXT_FIELDS)),
    numbers=st.tuples(NUMBER, NUMBER),
    code=st.none() | st.sampled_from([code for code in StatusCode if code is not StatusCode.OK]),
    eighths=st.none() | st.integers(0, 80_000),
    request_id=st.text(max_size=30),
)
def test_problems_survive_as_statuses(
    reason: Reason,
    message: str,
    texts: tuple[str | None, ...],
    numbers: tuple[int | None, ...],
    code: StatusCode | None,
    eighths: int | None,
    request_id: str,
) -> None:
    """A problem of ordinary size comes back from a status in every field, with the request id."""
    problem = Problem(
        reason,
        message,
        **dict(zip(TEXT_FIELDS, texts, strict=True)),
        aclnn_status=numbers[0],
        acl_error=numbers[1],
        status=code,
        retry_after_s=None if eighths is None else eighths / 8,
    )
    data = wire.status_from_problem(problem, request_id).SerializeToString()
    found = wire.problem_from_status(status_pb2.Status.FromString(data))
    assert found is not None
    assert (vars(found[0]), found[1]) == (vars(problem), request_id)


CHINESE = "算子第一阶段失败 形状不符合要求。" * 450
TEXTS = {
    "Chinese, 20 KB": CHINESE,
    "ASCII": "tiling failed at row 7; " * 2000,
    "percent signs": "%" * 20_000,
    "control characters": "\x00\x01\n\r\t\x7f" * 4000,
    "emoji": "\U0001f680" * 5000,
    "accents": "éà" * 5000,
    "mixed": ("a" * 50 + "错误" + "%\n") * 300,
    "lone surrogates": "\ud800x" * 5000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_long_texts_are_cut_by_their_encoded_size(text: str) -> None:
    """A long text is cut so that its encoded forms fit, says so, and names the request."""
    problem = Problem(Reason.OPERATOR_FAILED, text)
    status = wire.status_from_problem(problem, "request-17")
    kept, note = status.message.split("... (")
    assert note == "truncated; full text by request id request-17)"
    assert text.encode("utf-8", "replace").decode().startswith(kept)
    cost = len(_percent_encoded(kept)) + len(base64.b64encode(kept.encode()))
    assert 0.9 * TEXT_COST_BYTES < cost <= TEXT_COST_BYTES + 4
    back = wire.problem_from_status(status_pb2.Status.FromString(status.SerializeToString()))
    assert back is not None
    assert (back[0].reason, back[0].status) == (Reason.OPERATOR_FAILED, StatusCode.INTERNAL)


def test_the_chinese_text_is_as_large_as_the_case_asks() -> None:
    """The text above takes 20 KB before anything is encoded."""
    assert len(CHINESE.encode()) >= 20_000


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_largest_status_fits_the_trailers(text: str) -> None:
    """Message and details together stay under 7 KiB, with every field as long as can be."""
    problem = Problem(
        Reason.ROTARY_MODE_NOT_SUPPORTED,
        text,
        argument=text,
        given=text,
        allowed=text,
        stage=text,
        soc=text,
        cann_version=text,
        operator_package=text,
        library_file=text,
        aclnn_status=-(2**63),
        acl_error=-(2**63),
        retry_after_s=86_400.123456789,
    )
    status = wire.status_from_problem(problem, "r" * 64)
    assert _trailer_bytes(status) < TRAILER_BYTES
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    assert all(len(value.encode()) <= FIELD_BYTES for value in info.metadata.values())
    assert (
        info.metadata["argument"]
        == text.encode("utf-8", "replace").decode()[: len(info.metadata["argument"])]
    )


@given(st.text(st.characters(), min_size=200, max_size=2000))
def test_any_text_fits_the_trailers(text: str) -> None:
    """Texts of any characters, surrogates too, make a status that can be sent."""
    status = wire.status_from_problem(Problem(Reason.SERVER_DEFECT, text, given=text), "r" * 32)
    assert _trailer_bytes(status) < TRAILER_BYTES


@pytest.mark.parametrize("character", ["a", "%", "é", "错", "\U0001f680"])
def test_a_text_that_just_fits_is_left_whole(character: str) -> None:
    """The longest text under the cap is not touched, one more character is."""
    encoded = character.encode()
    cost = len(_percent_encoded(character)) + len(encoded) * 4 / 3
    longest = character * int(TEXT_COST_BYTES / cost)
    assert shorten(longest, "r") == longest
    assert shorten(longest + character, "r") != longest + character


def test_ordinary_errors_have_the_standard_form() -> None:
    """Code, text, ErrorInfo and, for a busy server, RetryInfo are where the standard wants them."""
    problem = Problem(Reason.SERVER_BUSY, "the queue is full", retry_after_s=1.5)
    status = wire.status_from_problem(problem, "request-1")
    assert (status.code, status.message) == (14, "the queue is full")
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.domain, info.reason) == (DOMAIN, "SERVER_BUSY")
    assert dict(info.metadata) == {"request_id": "request-1"}
    assert retry.retry_delay.ToNanoseconds() == 1_500_000_000


def _status(reason: str, domain: str = DOMAIN, **metadata: str) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)
    status = status_pb2.Status(code=13, message="it broke")
    status.details.add().Pack(info)
    return status


@pytest.mark.parametrize(
    "status",
    [
        status_pb2.Status(code=13, message="it broke"),
        _status("DEVICE_FAULT", domain="example.com"),
        _status("NEVER_HEARD_OF"),
        _status(""),
        status_pb2.Status(details=[any_pb2.Any(type_url="type.googleapis.com/x.Y", value=b"z")]),
        status_pb2.Status(code=99, details=_status("DEVICE_FAULT").details),
        status_pb2.Status(
            details=[any_pb2.Any(type_url=_status("DEVICE_FAULT").details[0].type_url, value=b"z")]
        ),
    ],
    ids=[
        "no details",
        "another domain",
        "unknown reason",
        "no reason",
        "other details",
        "no code of gRPC's",
        "damaged details",
    ],
)
def test_statuses_of_others_are_no_problems_of_ours(status: status_pb2.Status) -> None:
    """A status without our ErrorInfo, or with a reason that we do not know, is not taken."""
    assert wire.problem_from_status(status) is None


@pytest.mark.parametrize("number", ["", "x", "--5", "²", "1e3", "0x10"])
def test_metadata_that_is_no_number_is_left_out(number: str) -> None:
    """A number that cannot be read does not hide the error that it came with."""
    found = wire.problem_from_status(_status("DEVICE_FAULT", aclnn_status=number, acl_error="-7"))
    assert found is not None
    assert (found[0].aclnn_status, found[0].acl_error) == (None, -7)
