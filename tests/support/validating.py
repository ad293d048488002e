"""Validate streams as a peer may speak them that is not our SDK."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import grpc
from google.rpc import status_pb2

from opferry import errors, wire
from opferry.v1 import tensor_pb2
from opferry.v1 import validation_pb2 as pb
from opferry.validation.recipes import GENERATOR_VERSION
from tests.support import raw
from tests.support.calls import GRAD, Subject

HEADER = pb.ValidateHeader(standard="mixed")
"""The header of a stream as most tests need it."""


def recipe(spec: tensor_pb2.TensorSpec, **fields: Any) -> pb.CaseInput:
    """Return an input that the server makes; fields override those of its recipe."""
    usual = {"version": GENERATOR_VERSION, "low": -2.0, "high": 2.0, "seed": 7}
    return pb.CaseInput(spec=spec, recipe=pb.Recipe(**{**usual, **fields}))


def data(spec: tensor_pb2.TensorSpec, digest: bytes = b"") -> pb.CaseInput:
    """Return an input whose data the client has."""
    return pb.CaseInput(spec=spec, client_data=pb.ClientData(sha256=digest))


def zeros_digest(spec: tensor_pb2.TensorSpec) -> bytes:
    """Return the SHA-256 of a tensor of zeros."""
    return sha256(bytes(spec.data_bytes)).digest()


def case(
    case_id: int = 1,
    inputs: list[pb.CaseInput] | None = None,
    tokens: int = 2,
    width: int = 8,
    *,
    subject: Subject = GRAD,
    **fields: Any,
) -> pb.ValidateCase:
    """Return a case of an operator; valid, and all recipes, by default."""
    usual = {
        "case_id": case_id,
        "name": "a",
        "inputs": [recipe(spec) for spec in raw.small_specs(tokens, width, subject)]
        if inputs is None
        else inputs,
        **raw.half_tnd(subject),
    }
    return pb.ValidateCase(**{**usual, **fields})


def sent_case(
    case_id: int = 1,
    tokens: int = 2,
    *,
    named: bool = True,
    subject: Subject = GRAD,
    **fields: Any,
) -> pb.ValidateCase:
    """Return a case whose inputs are the client's zeros, each with a digest if *named*."""
    specs = raw.small_specs(tokens, subject=subject)
    inputs = [data(spec, zeros_digest(spec) if named else b"") for spec in specs]
    return case(case_id, inputs, subject=subject, **fields)


def chunk(case_id: int, index: int, offset: int, content: bytes, **fields: Any) -> pb.CaseChunk:
    """Return a chunk of an input; fields override."""
    usual = {
        "case_id": case_id,
        "tensor": pb.CASE_TENSOR_INPUT,
        "tensor_index": index,
        "offset_bytes": offset,
        "data": content,
    }
    return pb.CaseChunk(**{**usual, **fields})


def error_of(verdict: pb.CaseVerdict) -> errors.OpFerryError:
    """Return the error of a verdict that has one."""
    found = wire.problem_from_status(status_pb2.Status.FromString(verdict.error))
    assert found is not None, verdict
    return errors.from_problem(*found)


class Stream:
    """One Validate stream."""

    def __init__(self, address: str, timeout: float = 60.0) -> None:
        self._channel = grpc.insecure_channel(
            address, (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        )
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._address = address
        method: Any = self._channel.stream_stream(wire.methods["Validate"].path)
        self._call = method(iter(self._frames.get, None), timeout=timeout)

    def send(self, *messages: Any) -> None:
        """Send headers, cases and chunks, or bytes as they are."""
        for message in messages:
            if isinstance(message, pb.ValidateHeader):
                message = pb.ValidateRequest(header=message)
            elif isinstance(message, pb.ValidateCase):
                message = pb.ValidateRequest(case=message)
            elif isinstance(message, pb.CaseChunk):
                message = pb.ValidateRequest(chunk=message)
            data = message if isinstance(message, bytes) else message.SerializeToString()
            self._frames.put(data)

    def send_zeros(self, needed: pb.DataNeeded, message: pb.ValidateCase) -> None:
        """Send what is needed of a case's inputs: zeros."""
        for index in needed.input_indexes:
            size = message.inputs[index].spec.data_bytes
            self.send(chunk(message.case_id, index, 0, bytes(size)))

    def end(self) -> None:
        """End our side of the stream."""
        self._frames.put(None)

    def read(self) -> pb.ValidateResponse | None:
        """Return the next frame; None at the end. Raises our errors."""
        try:
            return pb.ValidateResponse.FromString(next(self._call))
        except StopIteration:
            return None
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, self._address) from error

    def welcome(self) -> int:
        """Read the welcome and return how many cases may be under way."""
        frame = self.read()
        assert frame is not None
        assert frame.HasField("welcome")
        return frame.welcome.case_count

    def verdict(self) -> pb.CaseVerdict:
        """Read a verdict, which must be next."""
        frame = self.read()
        assert frame is not None
        assert frame.HasField("verdict"), frame
        return frame.verdict

    def needed(self) -> pb.DataNeeded:
        """Read what is needed, which must be next."""
        frame = self.read()
        assert frame is not None
        assert frame.HasField("needed"), frame
        return frame.needed

    def until_error(self) -> tuple[list[pb.ValidateResponse], errors.OpFerryError]:
        """Read up to the error that ends the stream; return what came before, and the error."""
        frames = []
        try:
            while (frame := self.read()) is not None:
                frames.append(frame)
        except errors.OpFerryError as error:
            return frames, error
        raise AssertionError("the stream ended well")

    def rest(self) -> list[pb.ValidateResponse]:
        """End our side and read everything that comes."""
        self.end()
        return list(iter(self.read, None))  # type: ignore[arg-type]

    def close(self) -> None:
        """Cancel the stream, and close its connection."""
        self._call.cancel()
        self._frames.put(None)
        self._channel.close()


@contextlib.contextmanager
def opened(
    address: str, header: pb.ValidateHeader = HEADER, timeout: float = 60.0
) -> Iterator[Stream]:
    """Open a stream, past its welcome, for the length of a `with` block."""
    stream = Stream(address, timeout)
    try:
        stream.send(header)
        stream.welcome()
        yield stream
    finally:
        stream.close()
