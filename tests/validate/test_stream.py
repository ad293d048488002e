"""Frames as a foreign client may send them: a wrong stream ends, a wrong case has its verdict."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

import opferry
from opferry import errors
from opferry.v1 import execution_pb2, rotary_pb2, tensor_pb2
from opferry.v1 import validation_pb2 as pb
from opferry.validation import Recipe
from tests.support import raw, servers, validating
from tests.support.calls import GRAD, SUBJECTS, Subject
from tests.support.validating import HEADER, Stream, case, chunk, data, error_of, opened, recipe

LIMITS = {"case_count": 4, "memory_bytes": 2**20, "repeat_count": 20, "stream_idle_ms": 20_000}
TENSOR_BYTES = 64
"""The size of each input of a case by default."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with servers.embedded(limits=LIMITS) as server:
        yield server.address


def header(**fields: Any) -> pb.ValidateHeader:
    return pb.ValidateHeader(**{"standard": "mixed", **fields})


def unknown(message: Any) -> bytes:
    """Return a message's bytes with a field 999 behind."""
    content: bytes = message.SerializeToString() + b"\xb8\x3e\x01"
    return content


def framed(number: int, content: bytes) -> bytes:
    """Return a frame that holds *content* under a field."""
    assert len(content) < 2**14
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


BROKEN: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "STREAM_PROTOCOL"),
    "case first": ([case()], "STREAM_PROTOCOL"),
    "chunk first": ([chunk(1, 0, 0, b"a")], "STREAM_PROTOCOL"),
    "an empty frame first": ([b""], "STREAM_PROTOCOL"),
    "no protobuf": ([b"\xff\xff"], "STREAM_PROTOCOL"),
    "no protobuf later": ([HEADER, b"\xff\xff"], "STREAM_PROTOCOL"),
    "header twice": ([HEADER, HEADER], "STREAM_PROTOCOL"),
    "an empty frame later": ([HEADER, b""], "STREAM_PROTOCOL"),
    "an unknown field": ([HEADER, unknown(pb.ValidateRequest(case=case()))], "FIELD_UNKNOWN"),
    "an unknown field of the header": ([framed(1, unknown(HEADER))], "FIELD_UNKNOWN"),
    "an unknown field of a chunk": (
        [HEADER, framed(3, unknown(chunk(1, 0, 0, b"a")))],
        "FIELD_UNKNOWN",
    ),
    "no standard": ([header(standard="")], "ATTRIBUTE_INVALID"),
    "unknown standard": ([header(standard="fuzzy")], "ATTRIBUTE_INVALID"),
    "unknown edition": ([header(edition="of tomorrow")], "ATTRIBUTE_INVALID"),
    "unknown golden mode": ([header(golden_mode=99)], "ENUM_UNKNOWN"),
    "worst_count over the limit": ([header(worst_count=65)], "LIMIT_EXCEEDED"),
    "negative worst_count": ([header(worst_count=-1)], "LIMIT_EXCEEDED"),
    "repeat over the limit": (
        [header(options=execution_pb2.ExecutionOptions(repeat_count=21))],
        "LIMIT_EXCEEDED",
    ),
    "negative repeat": (
        [header(options=execution_pb2.ExecutionOptions(repeat_count=-1))],
        "LIMIT_EXCEEDED",
    ),
    "warmup over the limit": (
        [header(options=execution_pb2.ExecutionOptions(warmup_count=21))],
        "LIMIT_EXCEEDED",
    ),
    "a package's name over the limit": ([header(operator_package="a" * 129)], "LIMIT_EXCEEDED"),
    "case_id the same": ([HEADER, case(5), case(5)], "STREAM_PROTOCOL"),
    "case_id lower": ([HEADER, case(5), case(-5)], "STREAM_PROTOCOL"),
    "a chunk of an unknown case": ([HEADER, chunk(1, 0, 0, b"a")], "STREAM_PROTOCOL"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_stream_that_breaks_the_rules_ends(address: str, kind: str) -> None:
    """It ends with the reason, and the next stream is served."""
    frames, reason = BROKEN[kind]
    stream = Stream(address)
    try:
        stream.send(*frames)
        with pytest.raises(errors.OpFerryError) as caught:
            stream.rest()
    finally:
        stream.close()
    assert caught.value.reason == reason, caught.value
    assert caught.value.request_id
    with opened(address) as other:
        other.send(case())
        assert other.verdict().outputs


CHUNKS: dict[str, pb.CaseChunk] = {
    "an input that was not asked for": chunk(1, 1, 0, bytes(TENSOR_BYTES)),
    "gap": chunk(1, 0, 4, bytes(8)),
    "negative offset": chunk(1, 0, -1, bytes(8)),
    "empty": chunk(1, 0, 0, b""),
    "too many bytes": chunk(1, 0, 0, bytes(TENSOR_BYTES + 1)),
    "no such input": chunk(1, 4, 0, b"a"),
    "negative input": chunk(1, -1, 0, b"a"),
    "an output": chunk(1, 0, 0, b"a", tensor=pb.CASE_TENSOR_OUTPUT),
    "a golden": chunk(1, 0, 0, b"a", tensor=pb.CASE_TENSOR_GOLDEN),
    "no tensor": chunk(1, 0, 0, b"a", tensor=pb.CASE_TENSOR_UNSPECIFIED),
    "an unknown tensor": chunk(1, 0, 0, b"a", tensor=99),
    "another case": chunk(2, 0, 0, b"a"),
}


@pytest.mark.parametrize("kind", CHUNKS)
def test_a_chunk_out_of_place_ends_the_stream(address: str, kind: str) -> None:
    """Only what was asked for is taken, in order, without gap or overlap."""
    specs = raw.small_specs()
    with opened(address) as stream:
        stream.send(case(1, [data(specs[0]), *map(recipe, specs[1:])]))
        assert list(stream.needed().input_indexes) == [0]
        stream.send(CHUNKS[kind])
        with pytest.raises(errors.ProtocolError) as caught:
            stream.read()
    assert caught.value.reason == "STREAM_PROTOCOL"


def test_an_overlap_ends_the_stream(address: str) -> None:
    """Bytes that have come do not come again."""
    with opened(address) as stream:
        stream.send(validating.sent_case())
        stream.needed()
        stream.send(chunk(1, 0, 0, bytes(8)), chunk(1, 0, 4, bytes(8)))
        with pytest.raises(errors.ProtocolError, match="overlap"):
            stream.read()


def test_more_cases_than_the_welcome_allows_end_the_stream(address: str) -> None:
    """Cases that wait for data are under way."""
    stream = Stream(address)
    try:
        stream.send(HEADER)
        allowed = stream.welcome()
        assert allowed == LIMITS["case_count"]
        stream.send(*(validating.sent_case(number, named=False) for number in range(allowed + 1)))
        _, caught = stream.until_error()
        assert caught.reason == "STREAM_PROTOCOL"
        assert "under way" in caught.message
    finally:
        stream.close()


def test_whoever_has_a_last_frame_may_send_the_next_case_at_once(
    address: str, subject: Subject
) -> None:
    """One by one, with the window full all the time: hundreds of cases, and none is too many."""
    with opened(address, header(dump_outputs=True)) as stream:
        stream.send(*(case(number, subject=subject) for number in range(4)))
        sent, whole, chunks_left = 4, 0, {}
        while whole < 200:
            frame = stream.read()
            assert frame is not None
            if frame.HasField("verdict"):
                chunks_left[frame.verdict.case_id] = len(frame.verdict.outputs)
                continue
            chunks_left[frame.chunk.case_id] -= 1
            if not chunks_left[frame.chunk.case_id]:
                whole += 1
                stream.send(case(sent, subject=subject))
                sent += 1


def replaced(subject: Subject, index: int, item: pb.CaseInput) -> list[pb.CaseInput]:
    inputs = [recipe(spec) for spec in raw.small_specs(subject=subject)]
    inputs[index] = item
    return inputs


def of_input(subject: Subject, index: int, item: pb.CaseInput) -> pb.ValidateCase:
    return case(inputs=replaced(subject, index, item), subject=subject)


def of_spec(subject: Subject, **fields: Any) -> pb.ValidateCase:
    return of_input(subject, 0, recipe(raw.spec(subject.vectors[0], (2, 1, 8), **fields)))


def of_recipe(subject: Subject, **fields: Any) -> pb.ValidateCase:
    return of_input(subject, 0, recipe(raw.small_specs(subject=subject)[0], **fields))


def of_tolerance(subject: Subject, *items: pb.OutputTolerance) -> pb.ValidateCase:
    return case(tolerances=items, subject=subject)


def of_mode(subject: Subject, mode: int) -> pb.ValidateCase:
    message = case(subject=subject)
    getattr(message, subject.name).rotary_mode = mode
    return message


@functools.cache
def refused(subject: Subject) -> dict[str, tuple[Any, str]]:
    """Return cases of an operator that are wrong, and the reasons that are told."""
    found = {
        "no operator": (case(**{subject.name: None}, subject=subject), "OPERATOR_NOT_SUPPORTED"),
        "no inputs": (case(inputs=[], subject=subject), "INPUT_MISSING"),
        "an input twice": (
            of_input(subject, 1, recipe(raw.small_specs(subject=subject)[0])),
            "TENSOR_MALFORMED",
        ),
        "an unknown field": (framed(2, unknown(case(subject=subject))), "FIELD_UNKNOWN"),
        "an unknown field of a recipe": (
            pb.ValidateCase.FromString(
                case(inputs=[], subject=subject).SerializeToString()
                + framed(3, framed(2, unknown(recipe(raw.small_specs(subject=subject)[0]).recipe)))
            ),
            "FIELD_UNKNOWN",
        ),
        "data type not set": (of_spec(subject, data_type=0), "ENUM_NOT_SET"),
        "unknown data type": (of_spec(subject, data_type=99), "ENUM_UNKNOWN"),
        "unknown rotary mode": (of_mode(subject, 99), "ENUM_UNKNOWN"),
        "wrong size": (of_spec(subject, data_bytes=60), "TENSOR_MALFORMED"),
        "a digest of 7 bytes": (of_spec(subject, xxh3_64=bytes(7)), "TENSOR_MALFORMED"),
        "a sha256 of 31 bytes": (
            of_input(subject, 0, data(raw.small_specs(subject=subject)[0], bytes(31))),
            "TENSOR_MALFORMED",
        ),
        "no source": (
            of_input(subject, 0, pb.CaseInput(spec=raw.small_specs(subject=subject)[0])),
            "TENSOR_MALFORMED",
        ),
        "no spec": (of_input(subject, 0, pb.CaseInput(recipe=pb.Recipe())), "ENUM_NOT_SET"),
        "another generator": (of_recipe(subject, version="opferry-inputs-3"), "RECIPE_MISMATCH"),
        "no generator": (of_recipe(subject, version=""), "RECIPE_MISMATCH"),
        "unknown distribution": (of_recipe(subject, distribution=99), "ENUM_UNKNOWN"),
        "reversed bounds": (of_recipe(subject, low=2.0, high=1.0), "ATTRIBUTE_INVALID"),
        "forced values over the limit": (of_recipe(subject, forced=[1.0] * 1025), "LIMIT_EXCEEDED"),
        "a wrong digest of a recipe": (of_spec(subject, xxh3_64=bytes(8)), "RECIPE_MISMATCH"),
        "a name of a megabyte": (case(name="a" * 2**20, subject=subject), "LIMIT_EXCEEDED"),
        "a case_name of a megabyte": (of_recipe(subject, case_name="a" * 2**20), "LIMIT_EXCEEDED"),
        "many tolerances": (
            of_tolerance(
                subject, *[pb.OutputTolerance(output=subject.outputs[0], rtol=1)] * 10_000
            ),
            "LIMIT_EXCEEDED",
        ),
        "many tensors": (
            case(
                inputs=[recipe(raw.spec(f"a{number}", (1,))) for number in range(17)],
                subject=subject,
            ),
            "LIMIT_EXCEEDED",
        ),
        "a tolerance of no output": (
            of_tolerance(subject, pb.OutputTolerance(output="grad", rtol=1.0)),
            "ATTRIBUTE_INVALID",
        ),
        "a negative tolerance": (
            of_tolerance(subject, pb.OutputTolerance(output=subject.outputs[0], rtol=-1.0)),
            "ATTRIBUTE_INVALID",
        ),
        "a tolerance of NaN": (
            of_tolerance(subject, pb.OutputTolerance(output=subject.outputs[0], ptol=math.nan)),
            "ATTRIBUTE_INVALID",
        ),
        "a shape against the contract": (
            of_input(subject, 2, recipe(raw.spec("cos", (3, 1, 8)))),
            "SHAPE_MISMATCH",
        ),
    }
    if subject is GRAD:  # the other serves every mode
        found["a rotary mode that is not served"] = (
            of_mode(subject, rotary_pb2.ROTARY_MODE_QUARTER),
            "ROTARY_MODE_NOT_SUPPORTED",
        )
    return found


WRONG = [
    pytest.param(subject, kind, id=f"{name}-{kind}")
    for name, subject in SUBJECTS.items()
    for kind in refused(subject)
]


@pytest.mark.parametrize(("subject", "kind"), WRONG)
def test_a_case_that_is_wrong_has_its_verdict(address: str, subject: Subject, kind: str) -> None:
    """The error is in the verdict, with a request id, and the stream goes on."""
    message, reason = refused(subject)[kind]
    with opened(address) as stream:
        stream.send(message, case(2, subject=subject))
        verdicts = {verdict.case_id: verdict for verdict in (stream.verdict(), stream.verdict())}
        assert stream.rest() == []
    error = error_of(verdicts[1])
    assert error.reason == reason, error
    assert error.request_id
    assert not verdicts[1].outputs
    assert not verdicts[1].HasField("execution")
    assert [output.passed for output in verdicts[2].outputs] == [True, True]


@functools.cache
def served(subject: Subject) -> dict[str, tuple[Any, int]]:
    """Return cases of an operator that are unusual and right, and their outputs' elements."""
    return {
        "bounds of NaN": (of_recipe(subject, low=math.nan), 16),
        "infinite bounds": (of_recipe(subject, low=-math.inf, high=math.inf), 16),
        "forced NaN and infinities": (
            of_recipe(subject, forced=[math.nan, math.inf, -math.inf, -0.0]),
            16,
        ),
        "as many forced values as are allowed": (of_recipe(subject, forced=[1.0] * 1024), 16),
        "forced values in every input": (
            case(
                inputs=[
                    recipe(spec, forced=[1.0] * 1024) for spec in raw.small_specs(subject=subject)
                ],
                subject=subject,
            ),
            16,
        ),
        "a name that just fits": (case(name="ä" * 30_000, subject=subject), 16),
        "a normal distribution": (of_recipe(subject, distribution=pb.DISTRIBUTION_NORMAL), 16),
        "the least seed": (of_recipe(subject, seed=-(2**63)), 16),
        "inputs in another order": (
            case(
                inputs=[recipe(spec) for spec in reversed(raw.small_specs(subject=subject))],
                subject=subject,
            ),
            16,
        ),
        "case_id 0": (case(0, subject=subject), 16),
        "the highest case_id": (case(2**63 - 1, subject=subject), 16),
    }


@pytest.mark.parametrize("kind", served(GRAD))
@pytest.mark.parametrize("mode", ["ENABLE", "PROMOTE"])
def test_a_case_at_the_edge_is_judged(address: str, kind: str, mode: str, subject: Subject) -> None:
    """What is unusual and right passes: NaN and infinities are values, too."""
    message, count = served(subject)[kind]
    golden_mode = pb.GoldenMode.Value(f"GOLDEN_MODE_{mode}")
    with opened(address, header(golden_mode=golden_mode)) as stream:
        stream.send(message)
        verdict = stream.verdict()
    assert not verdict.error, error_of(verdict)
    assert [output.element_count for output in verdict.outputs] == [count, count]
    assert all(output.passed for output in verdict.outputs), verdict
    assert len(verdict.input_digests) == 8 * len(message.inputs)


def test_a_refused_call_has_the_status_of_the_device(address: str, subject: Subject) -> None:
    """A case against the contract: aclnn's status, the argument and the request id."""
    with opened(address) as stream:
        stream.send(of_input(subject, 2, recipe(raw.spec("cos", (3, 1, 8)))))
        error = error_of(stream.verdict())
    assert error.aclnn_status == 161002
    assert re.fullmatch(r".+-[0-9a-f]{16}", error.request_id)
    assert "cos" in error.message


def test_a_case_that_was_to_be_refused_and_is_not(address: str, subject: Subject) -> None:
    """It is executed, and nothing is compared."""
    with opened(address, header(dump_outputs=True, dump_goldens=True)) as stream:
        stream.send(case(expects_refusal=True, subject=subject))
        verdict = stream.verdict()
        assert stream.rest() == []
    assert not verdict.error
    assert not verdict.outputs
    assert not verdict.has_outputs
    assert not verdict.has_goldens
    assert verdict.execution.worker


def test_an_unknown_package_is_in_the_verdict(address: str, subject: Subject) -> None:
    """It names the packages that there are."""
    with opened(address, header(operator_package="mine")) as stream:
        stream.send(case(subject=subject))
        error = error_of(stream.verdict())
    assert error.reason == "OPERATOR_PACKAGE_UNKNOWN"
    assert "built-in" in error.message


def test_a_case_too_large_for_the_server_is_told_both_numbers(
    address: str, subject: Subject
) -> None:
    """Inputs and outputs alone fit; with the goldens they do not, or only in the output's type."""
    tokens = 3300  # 4 inputs, 2 outputs and 2 goldens of 32 bytes a token: 844,800 bytes
    seen = {}
    for mode in (pb.GOLDEN_MODE_DISABLE, pb.GOLDEN_MODE_ENABLE, pb.GOLDEN_MODE_PROMOTE):
        with opened(address, header(golden_mode=mode)) as stream:
            stream.send(case(tokens=tokens, subject=subject))
            verdict = stream.verdict()
            seen[mode] = error_of(verdict) if verdict.error else None
            stream.send(case(2, tokens=2 * tokens, subject=subject))
            error = error_of(stream.verdict())
            assert error.reason == "TENSOR_TOO_LARGE"
            assert str(LIMITS["memory_bytes"]) in error.message
    assert seen[pb.GOLDEN_MODE_DISABLE] is None
    assert seen[pb.GOLDEN_MODE_ENABLE] is None
    error = seen[pb.GOLDEN_MODE_PROMOTE]
    assert error is not None
    assert error.reason == "TENSOR_TOO_LARGE"
    assert str(LIMITS["memory_bytes"]) in error.message
    assert error.given
    assert int(error.given) > LIMITS["memory_bytes"]


def verdict_on(stream: Stream, message: pb.ValidateCase) -> tuple[bool, pb.CaseVerdict]:
    """Send a case of zeros; return whether its data were asked for, and the verdict."""
    stream.send(message)
    frame = stream.read()
    assert frame is not None
    if not frame.HasField("needed"):
        return False, frame.verdict
    stream.send_zeros(frame.needed, message)
    return True, stream.verdict()


@pytest.mark.parametrize("kind", ["sha256", "xxh3_64", "both"])
def test_data_that_are_not_what_their_digest_says(
    address: str, kind: str, subject: Subject
) -> None:
    """CHECKSUM_MISMATCH, nothing is kept under a wrong sha256, and the stream goes on."""
    spec = raw.small_specs(subject=subject)[0]
    wrong = b"w" * 32 if kind != "xxh3_64" else validating.zeros_digest(spec)
    marked = tensor_pb2.TensorSpec.FromString(spec.SerializeToString())
    if kind != "sha256":
        marked.xxh3_64 = b"12345678"
    message = case(1, replaced(subject, 0, data(marked, wrong)), subject=subject)
    again = case(2, replaced(subject, 0, data(spec, wrong)), subject=subject)
    with opened(address) as stream:
        asked, verdict = verdict_on(stream, message)
        error = error_of(verdict)
        assert error.reason == "CHECKSUM_MISMATCH"
        assert subject.vectors[0] in error.message
        asked_again, verdict = verdict_on(stream, again)
        if kind == "xxh3_64":
            assert verdict.outputs
        else:
            assert asked
            assert asked_again
            assert error_of(verdict).reason == "CHECKSUM_MISMATCH"


def test_a_half_closed_stream_has_all_its_verdicts(address: str, subject: Subject) -> None:
    """The end of the client's side is no cancel."""
    with opened(address) as stream:
        stream.send(*(case(number, subject=subject) for number in range(1, 5)))
        frames = stream.rest()
    assert sorted(frame.verdict.case_id for frame in frames) == [1, 2, 3, 4]
    assert all(output.passed for frame in frames for output in frame.verdict.outputs)


@pytest.mark.parametrize("when", ["before it is asked for", "after it was asked for"])
def test_data_that_can_no_longer_come_are_not_waited_for(
    address: str, when: str, subject: Subject
) -> None:
    """Whoever ends his side without the data has the verdict at once, and the others theirs."""
    with opened(address) as stream:
        stream.send(validating.sent_case(1, named=False, subject=subject))
        if when.startswith("after"):
            stream.needed()
        stream.send(case(2, subject=subject))
        frames = [frame for frame in stream.rest() if frame.HasField("verdict")]
    verdicts = {frame.verdict.case_id: frame.verdict for frame in frames}
    assert error_of(verdicts[1]).reason == "STREAM_PROTOCOL"
    assert "ended its side" in error_of(verdicts[1]).message
    assert all(output.passed for output in verdicts[2].outputs)


def test_a_foreign_verdict_is_that_of_the_sdk(address: str, subject: Subject) -> None:
    """The same case from raw frames and from the client has the same digests."""
    with opened(address) as stream:
        stream.send(case(subject=subject))
        verdict = stream.verdict()
    recipes = {
        spec.name: opferry.TensorSpec(opferry.DType.FLOAT32, (2, 1, 8))
        for spec in raw.small_specs(subject=subject)
    }
    with opferry.connect(address) as client:
        result = client.validate(
            subject.name,
            {name: Recipe(spec, seed=7, case_name="a") for name, spec in recipes.items()},
            attributes={"layout": 4},
        )
    assert [output.digest for output in result.outputs] == [
        output.digest for output in verdict.outputs
    ]
    assert b"".join(result.input_digests.values()) == verdict.input_digests
