"""Requests that say one thing and do another cost the server nothing and harm nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.v1 import operator_service_pb2 as pb
from opferry.v1 import tensor_pb2
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.processes import MIB, family, rss_anon_bytes

GROWTH_BYTES = 16 * MIB


@pytest.fixture(scope="module")
def server() -> Iterator[servers.EmbeddedServer]:
    with servers.embedded() as running:
        with opferry.connect(running.address) as client:
            client.apply_rotary_pos_emb_grad(**tnd())
        yield running


def _replaced(index: int, **fields: object) -> list[tensor_pb2.TensorSpec]:
    specs = raw.small_specs()
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(specs[index], name)[:]
            getattr(specs[index], name).extend(value)
        else:
            setattr(specs[index], name, value)
    return specs


def _headers(specs: list[tensor_pb2.TensorSpec], **fields: object) -> Callable[[str], object]:
    return lambda address: raw.stream(address, [raw.header_frame(specs, **fields), *raw.body()])


def _unary(**fields: object) -> Callable[[str], object]:
    tensors = {
        spec.name: tensor_pb2.Tensor(spec=spec, data=bytes(64)) for spec in raw.small_specs()
    }
    request = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND, **{**tensors, **fields})
    return lambda address: raw.unary(address, "ApplyRotaryPosEmbGrad", request.SerializeToString())


def _unary_bytes(size: int) -> Callable[[str], object]:
    spec = raw.small_specs()[0]
    return _unary(grad_query_embed=tensor_pb2.Tensor(spec=spec, data=bytes(size)))


def _frames(*frames: bytes) -> Callable[[str], object]:
    return lambda address: raw.stream(address, frames)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _many_unknown_fields() -> bytes:
    unknown = b"".join(_varint((100 + n) << 3) + b"\x01" for n in range(10_000))
    content = raw.header().SerializeToString() + unknown
    return b"\x0a" + _varint(len(content)) + content


BODY = raw.body()
HUGE = 2**31

LIES: dict[str, tuple[Callable[[str], object], type[Exception], str]] = {
    "shape beyond 64 bits": (
        _headers(_replaced(0, shape=[HUGE, HUGE, 2], data_bytes=2**62)),
        errors.RequestError,
        "declares",
    ),
    "product that overflows to its declared size": (
        _headers(_replaced(0, shape=[HUGE, HUGE, 4], data_bytes=0)),
        errors.RequestError,
        "declares",
    ),
    "negative extent": (
        _headers(_replaced(0, shape=[-1, 4, 64], data_bytes=-1024)),
        errors.RequestError,
        "axis|axes|width",
    ),
    "stride outside the storage": (
        _headers(_replaced(0, strides=[2**30, 8, 1])),
        errors.InvalidTensorError,
        "addresses element",
    ),
    "negative stride": (
        _headers(_replaced(0, strides=[-8, 8, 1])),
        errors.InvalidTensorError,
        "strides",
    ),
    "offset outside the storage": (
        _headers(_replaced(0, storage_offset=2**40)),
        errors.InvalidTensorError,
        "addresses element",
    ),
    "more than the limit": (
        _headers([raw.spec(s.name, (2**20, 1, 1024)) for s in raw.small_specs()]),
        errors.TooLargeError,
        "the limit is",
    ),
    "unary bytes one short": (_unary_bytes(63), errors.InvalidTensorError, "declares 64"),
    "unary bytes one long": (_unary_bytes(65), errors.InvalidTensorError, "declares 64"),
    "bytes one short": (
        _frames(raw.header_frame(), *BODY[:3], raw.chunk(3, 0, bytes(63))),
        errors.ProtocolError,
        "ended after 63 bytes",
    ),
    "bytes one long": (
        _frames(raw.header_frame(), *BODY[:3], raw.chunk(3, 0, bytes(65))),
        errors.ProtocolError,
        "65 bytes came",
    ),
    "stream ended early": (
        _frames(raw.header_frame(), BODY[0]),
        errors.ProtocolError,
        "grad_key_embed",
    ),
    "nothing but a header": (_frames(raw.header_frame()), errors.ProtocolError, "after 0 bytes"),
    "nothing at all": (_frames(), errors.ProtocolError, "before its header"),
    "chunk before the header": (_frames(BODY[0]), errors.ProtocolError, "before the header"),
    "two headers": (
        _frames(raw.header_frame(), raw.header_frame()),
        errors.ProtocolError,
        "not a chunk",
    ),
    "gap": (
        _frames(raw.header_frame(), raw.chunk(0, 4, bytes(60))),
        errors.ProtocolError,
        "gap",
    ),
    "overlap": (
        _frames(raw.header_frame(), raw.chunk(0, 0, bytes(32)), raw.chunk(0, 16, bytes(48))),
        errors.ProtocolError,
        "overlap",
    ),
    "empty chunk": (
        _frames(raw.header_frame(), raw.chunk(0, 0, b"")),
        errors.ProtocolError,
        "empty",
    ),
    "unknown tensor": (
        _frames(raw.header_frame(), raw.chunk(4, 0, bytes(64))),
        errors.ProtocolError,
        "names tensor 4",
    ),
    "no protobuf": (_frames(b"\xff\xff\xff"), errors.ProtocolError, "no message"),
    "empty frame": (_frames(b""), errors.ProtocolError, "neither header nor chunk"),
    "duplicated tensor": (
        _headers([*raw.small_specs(), raw.small_specs()[0]]),
        errors.InvalidTensorError,
        "twice",
    ),
    "10,000 tensors": (
        _headers([raw.spec(f"t{n}", (1,)) for n in range(10_000)]),
        errors.TooLargeError,
        "10000 tensors",
    ),
    "10,000 axes": (
        _headers(_replaced(0, shape=[1] * 10_000, data_bytes=4)),
        errors.TooLargeError,
        "10000 axes",
    ),
    "10,000 unknown fields": (
        _frames(_many_unknown_fields()),
        errors.ProtocolError,
        "field 100",
    ),
    "name of 1 MB": (
        _headers([*raw.small_specs(), raw.spec("n" * 2**20, (1,))]),
        errors.TooLargeError,
        "1048576 bytes",
    ),
    "unknown name": (
        _headers([*raw.small_specs(), raw.spec("quary", (1,))]),
        errors.ContractError,
        "quary",
    ),
    "wrong checksum": (
        _headers(_replaced(0, xxh3_64=b"\0" * 8)),
        errors.InvalidTensorError,
        "digest",
    ),
    "checksum of 3 bytes": (
        _headers(_replaced(0, xxh3_64=b"\0" * 3)),
        errors.InvalidTensorError,
        "8",
    ),
    "a million repeats": (
        _headers(raw.small_specs(), options={"repeat_count": 1_000_000}),
        errors.TooLargeError,
        "repeat",
    ),
    "data type unset": (
        _headers(_replaced(0, data_type=tensor_pb2.DATA_TYPE_UNSPECIFIED)),
        errors.ContractError,
        "data_type",
    ),
    "no operator": (
        _frames(pb.ExecuteRequest(header=pb.ExecuteHeader()).SerializeToString()),
        errors.NotSupportedError,
        "names no operator",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_at_once_and_costs_nothing(
    server: servers.EmbeddedServer, lie: str
) -> None:
    """Each is refused within a second with its reason, and the next request is served."""
    tell, kind, words = LIES[lie]
    before = {pid: rss_anon_bytes(pid) for pid in family(server.pid)}
    started = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        tell(server.address)
    # a second is what it takes at the most on a quiet machine; the rest is for a busy one
    assert time.monotonic() - started < 5
    assert isinstance(caught.value, errors.OpFerryError)
    assert caught.value.request_id
    assert caught.value.reason
    grown = sum(rss_anon_bytes(pid) - size for pid, size in before.items())
    assert grown < GROWTH_BYTES
    arguments = tnd()
    with opferry.connect(server.address) as client:
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))


def test_a_message_over_grpcs_limit_is_refused(server: servers.EmbeddedServer) -> None:
    """5 MiB in one message never reach the service."""
    with pytest.raises(errors.TransportError, match="RESOURCE_EXHAUSTED"):
        raw.stream(server.address, [raw.header_frame(), raw.chunk(0, 0, bytes(5 * MIB))])


def test_a_unary_call_over_its_limit_says_so(server: servers.EmbeddedServer) -> None:
    """A reply too large for a unary call is refused with both numbers, before it is computed."""
    shape, one = (2**18, 1, 2), (1, 1, 2)
    tensors = {
        name: tensor_pb2.Tensor(
            spec=raw.spec(name, shape, strides=[0, 2, 1], storage_shape=list(one), data_bytes=8),
            data=bytes(8),
        )
        for name in ("grad_query_embed", "grad_key_embed", "cos", "sin")
    }
    request = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND, **tensors)
    with pytest.raises(errors.TooLargeError, match="outputs of a unary call") as caught:
        raw.unary(server.address, "ApplyRotaryPosEmbGrad", request.SerializeToString())
    assert caught.value.given == str(2 * 2**18 * 2 * 4)
    assert caught.value.allowed == str(servers.EARLY_STREAMS["unary_bytes"])


def test_over_the_limit_nothing_is_sent(server: servers.EmbeddedServer) -> None:
    """The SDK refuses a request over the server's limit before any byte of it is sent."""
    one = np.ones((1, 1, 1024), np.float32)
    wide = np.broadcast_to(one, (2**20, 16, 1024))
    narrow = np.broadcast_to(one, (2**20, 1, 1024))
    with (
        opferry.connect(server.address) as client,
        pytest.raises(errors.TooLargeError, match="the limit is") as caught,
    ):
        client.apply_rotary_pos_emb_grad(wide, wide, narrow, narrow, layout=4, keep_strides=True)
    assert caught.value.request_id == ""
    assert caught.value.given == str(2**20 * 16 * 1024 * 4)
    assert caught.value.allowed == str(4 * 2**30)
