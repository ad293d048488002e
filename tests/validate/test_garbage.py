"""Servers that answer garbage: an error of ours, never a wrong verdict, never a hang."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

import opferry
from opferry import errors, wire
from opferry.core.execution import Execution, ServerInfo
from opferry.core.limits import LimitsConfig
from opferry.v1 import validation_pb2 as pb
from opferry.validation import Case, CaseResult, CaseStatus, digest, generate
from tests.support import suites
from tests.support.calls import GRAD, SUBJECTS, Subject

INFO = ServerInfo("0", "cpu", False, True, (), (), (), LimitsConfig(), {}, "")
Frames = Callable[[pb.ValidateCase], list[Any]]
WELCOME = pb.ValidateWelcome(case_count=2)


@contextmanager
def garbage(frames: Frames, first: Any = WELCOME, case_count: int = 1) -> Iterator[str]:
    """Serve a Validate stream that answers its first cases with frames that are made up."""

    def validate(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        pb.ValidateRequest.FromString(next(requests))
        yield encoded(first)
        for request in itertools.islice(requests, case_count):
            for frame in frames(pb.ValidateRequest.FromString(request).case):
                yield encoded(frame)
                if isinstance(frame, pb.DataNeeded):
                    next(requests, None)

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {
        "Validate": grpc.stream_stream_rpc_method_handler(validate),
        "GetServerInfo": grpc.unary_unary_rpc_method_handler(
            lambda *_: wire.server_info_message(INFO).SerializeToString()
        ),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(wire.SERVICE_NAME, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def encoded(frame: Any) -> bytes:
    if isinstance(frame, bytes):
        return frame
    names = {
        pb.ValidateWelcome: "welcome",
        pb.DataNeeded: "needed",
        pb.CaseVerdict: "verdict",
        pb.CaseChunk: "chunk",
    }
    return pb.ValidateResponse(**{names[type(frame)]: frame}).SerializeToString()


def subject_of(case: pb.ValidateCase) -> Subject:
    """Return whose case it is."""
    name = case.WhichOneof("attributes")
    assert name is not None
    return SUBJECTS[name]


def recipe_case(name: str, subject: Subject) -> Case:
    """Return a case of recipes."""
    return suites.case(name, suites.recipes(subject=subject))


def digests(case: pb.ValidateCase) -> bytes:
    """Return the right digests of a case of recipes."""
    given = recipe_case(case.name, subject_of(case)).given
    return b"".join(
        digest(generate(replace(given[item.spec.name], case_name=case.name)))  # type: ignore[type-var,arg-type]
        for item in case.inputs
    )


def verdict(case: pb.ValidateCase, *names: str, **fields: Any) -> pb.CaseVerdict:
    """Return the verdict that a case passes."""
    usual = {
        "case_id": case.case_id,
        "input_digests": digests(case),
        "execution": wire.execution_message(Execution()),
        "outputs": [
            pb.OutputVerdict(name=name, passed=True, element_count=16, passing_count=16)
            for name in names or subject_of(case).outputs[:2]
        ],
    }
    return pb.CaseVerdict(**{**usual, **fields})


def chunk(case: pb.ValidateCase, index: int, offset: int, size: int, **fields: Any) -> pb.CaseChunk:
    usual = {
        "case_id": case.case_id,
        "tensor": pb.CASE_TENSOR_OUTPUT,
        "tensor_index": index,
        "offset_bytes": offset,
        "data": bytes(size),
    }
    return pb.CaseChunk(**{**usual, **fields})


def needed(case: pb.ValidateCase, *indexes: int, other: int = 0) -> pb.DataNeeded:
    return pb.DataNeeded(case_id=case.case_id + other, input_indexes=indexes)


def dumped(case: pb.ValidateCase) -> pb.CaseVerdict:
    return verdict(case, has_outputs=True)


SIZE = 64
STREAMS: dict[str, Frames] = {
    "nothing": lambda case: [],
    "no protobuf": lambda case: [b"\xff\xff"],
    "a verdict on an unknown case": lambda case: [verdict(case, case_id=case.case_id + 1)],
    "a verdict on a negative case": lambda case: [verdict(case, case_id=-1)],
    "data of an unknown case": lambda case: [needed(case, 0, other=9)],
    "data of an unknown input": lambda case: [needed(case, 4)],
    "data of a negative input": lambda case: [needed(case, -1)],
    "an error that is none": lambda case: [verdict(case, error=b"\xff\xff")],
    "an error of somebody else's": lambda case: [
        verdict(case, error=status_pb2.Status(code=3, message="no").SerializeToString())
    ],
    "a chunk before its verdict": lambda case: [chunk(case, 0, 0, SIZE), dumped(case)],
    "a chunk that was not announced": lambda case: [dumped(case), chunk(case, 2, 0, SIZE)],
    "a chunk of a negative output": lambda case: [dumped(case), chunk(case, -1, 0, SIZE)],
    "a golden that was not announced": lambda case: [
        dumped(case),
        chunk(case, 0, 0, SIZE, tensor=pb.CASE_TENSOR_GOLDEN),
    ],
    "gap": lambda case: [dumped(case), chunk(case, 0, 8, 8)],
    "overlap": lambda case: [dumped(case), chunk(case, 0, 0, 8), chunk(case, 0, 4, 8)],
    "negative offset": lambda case: [dumped(case), chunk(case, 0, -8, 8)],
    "an empty chunk": lambda case: [dumped(case), chunk(case, 0, 0, 0)],
    "one byte long": lambda case: [dumped(case), chunk(case, 0, 0, SIZE + 1)],
    "one byte short": lambda case: [dumped(case), chunk(case, 0, 0, SIZE - 1)],
    "an unknown output": lambda case: [verdict(case, "grad_value", has_outputs=True)],
    "a verdict on an unknown output": lambda case: [
        verdict(case, *subject_of(case).outputs[:2], "grad_value")
    ],
    "an output of an absent input": lambda case: [verdict(case, "grad_cos2", has_outputs=True)],
}


def results(address: str, twin: str, cases: list[Any]) -> list[CaseResult]:
    """Have cases judged by a client that does not try twice."""
    once = opferry.RetryConfig(attempts=1)

    def run() -> list[CaseResult]:
        with opferry.connect(address, retry=once, timeout=20) as client:
            return list(client.validate_cases(cases, dump_outputs=True))

    async def run_aio() -> list[CaseResult]:
        async with opferry.aio.connect(address, retry=once, timeout=20) as client:
            found = await client.validate_cases(cases, dump_outputs=True)
            return [result async for result in found]

    return run() if twin == "sync" else asyncio.run(run_aio())


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("twin", ["sync", "aio"])
def test_a_stream_of_garbage_is_an_error(kind: str, twin: str, subject: Subject) -> None:
    """Whatever is wrong with a frame, no case passes, and the run ends with a TransportError."""
    with garbage(STREAMS[kind]) as address:
        first, second = results(
            address, twin, [recipe_case("a", subject), recipe_case("b", subject)]
        )
    assert first.status in (CaseStatus.NOT_RUN, CaseStatus.ERROR)
    assert isinstance(first.error, errors.TransportError), first
    assert "Exception" not in first.error.message, "the frames are garbage, not the test's server"
    assert second.status is not CaseStatus.PASS


@pytest.mark.parametrize(
    "first", [b"\xff\xff", pb.CaseVerdict(case_id=1), pb.DataNeeded(case_id=1)]
)
def test_a_stream_without_a_welcome_is_an_error(first: Any, subject: Subject) -> None:
    """No case is sent before; what else comes is out of place."""
    with garbage(lambda case: [], first) as address:
        (result,) = results(address, "sync", [recipe_case("a", subject)])
    assert result.status is CaseStatus.NOT_RUN
    assert isinstance(result.error, errors.TransportError)


@pytest.mark.parametrize("given", [b"", bytes(8), bytes(32), bytes(31), bytes(400)])
def test_wrong_digests_of_recipes_name_the_input(given: bytes, subject: Subject) -> None:
    """RECIPE_MISMATCH: what the server has made is not what is made here."""
    frames: Frames = lambda case: [verdict(case, input_digests=given)]  # noqa: E731
    with garbage(frames) as address:
        (result,) = results(address, "sync", [recipe_case("a", subject)])
    assert result.status is CaseStatus.ERROR
    assert result.error is not None
    assert result.error.reason == "RECIPE_MISMATCH"
    assert result.error.argument == subject.vectors[0]


@pytest.mark.parametrize("index", range(4))
def test_the_input_with_the_wrong_digest_is_named(index: int, subject: Subject) -> None:
    """Each of them, by its own name."""

    def frames(case: pb.ValidateCase) -> list[Any]:
        wrong = bytearray(digests(case))
        wrong[8 * index] ^= 1
        return [verdict(case, input_digests=bytes(wrong))]

    with garbage(frames) as address:
        (result,) = results(address, "sync", [recipe_case("a", subject)])
    assert result.error is not None
    assert result.error.reason == "RECIPE_MISMATCH"
    assert result.error.argument == list(suites.recipes(subject=subject))[index]


def test_inputs_that_come_to_differ_are_found_out(subject: Subject) -> None:
    """Among many of one kind not all are made here too; some always are."""
    cases = [recipe_case(f"case-{number}", subject) for number in range(40)]

    def frames(case: pb.ValidateCase) -> list[Any]:
        right = case.case_id <= 20
        return [verdict(case, input_digests=digests(case) if right else bytes(32))]

    with garbage(frames, case_count=len(cases)) as address:
        found = [result.error for result in results(address, "sync", cases)]
    wrong = [number for number, error in enumerate(found) if error is not None]
    assert 20 < wrong[0] < 40
    # from the first on nothing is believed any more
    assert wrong == list(range(wrong[0], 40))
    assert {error.reason for error in found if error is not None} == {"RECIPE_MISMATCH"}


@pytest.mark.parametrize("asked", [(), (0, 1, 2, 3)])
def test_wrong_digests_of_data_are_found_out(asked: tuple[int, ...], subject: Subject) -> None:
    """CHECKSUM_MISMATCH, whether the data were sent or the server claims to have kept them."""
    inputs = {k: v for k, v in subject.tnd(2, 1, 1, with_query=False).items() if k != "layout"}

    def frames(case: pb.ValidateCase) -> list[Any]:
        return [
            *([needed(case, *asked)] if asked else []),
            verdict(case, input_digests=bytes(32)),
        ]

    with garbage(frames) as address:
        (result,) = results(address, "sync", [suites.case("a", inputs)])
    assert result.status is CaseStatus.ERROR
    assert result.error is not None
    assert result.error.reason == "CHECKSUM_MISMATCH"


def test_outputs_that_did_not_come_are_no_pass(subject: Subject) -> None:
    """A verdict without one of the outputs fails."""
    with garbage(lambda case: [verdict(case, subject.outputs[0])]) as address:
        (result,) = results(address, "sync", [recipe_case("a", subject)])
    assert result.status is CaseStatus.FAIL


def test_an_output_too_many_is_no_pass() -> None:
    """The backward's sums are not to come without query and key; the forward's come always."""
    with garbage(lambda case: [verdict(case, *GRAD.outputs[:3])]) as address:
        (result,) = results(address, "sync", [recipe_case("a", GRAD)])
    assert result.status is CaseStatus.FAIL


def test_the_right_verdict_passes(subject: Subject) -> None:
    """What the other tests change is a verdict that would pass."""
    frames: Frames = lambda case: [  # noqa: E731
        dumped(case),
        chunk(case, 1, 0, 8),
        chunk(case, 0, 0, SIZE),
        chunk(case, 1, 8, SIZE - 8),
    ]
    with garbage(frames) as address:
        (result,) = results(address, "sync", [recipe_case("a", subject)])
    assert result.status is CaseStatus.PASS, result.reason
    assert set(result.dumped) == set(subject.outputs[:2])
