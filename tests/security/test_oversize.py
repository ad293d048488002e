"""Each limit in bytes or counts that one request can go over: refused by its name, at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import opferry
from opferry import errors
from opferry.core.limits import LimitsConfig
from opferry.v1 import execution_pb2, tensor_pb2
from opferry.v1 import operator_service_pb2 as pb
from tests.support import raw, servers
from tests.support.calls import assert_same_bits, reference, tnd

LIMITS = {
    "unary_bytes": 4096,
    "tensor_bytes": 8_000_000,
    "request_bytes": 20_000_000,
    "memory_bytes": 400_000,
    "leased_bytes": 200_000,
    "client_leased_bytes": 200_000,
    "tensor_count": 6,
    "name_bytes": 32,
    "rank_count": 4,
    "repeat_count": 10,
    "idle_memory_bytes": 0,
}

Attack = Callable[[str], object]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.tcp(tmp_path_factory.mktemp("server"), limits=LIMITS) as server:
        yield server.address


def execute(*specs: tensor_pb2.TensorSpec, **header: object) -> Attack:
    """Return what sends a header, and nothing after it."""
    frame = raw.header_frame(list(specs) or None, **header)
    return lambda address: raw.stream(address, [frame])


def whole(tokens: int) -> Attack:
    """Return what sends a whole call in one message."""
    tensors = {
        name: tensor_pb2.Tensor(spec=raw.spec("", (tokens, 1, 8)), data=bytes(tokens * 32))
        for name in ("grad_query_embed", "grad_key_embed", "cos", "sin")
    }
    request = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND, **tensors)
    return lambda address: raw.unary(address, "ApplyRotaryPosEmbGrad", request.SerializeToString())


ATTACKS: dict[str, tuple[Attack, str, type[errors.OpFerryError]]] = {
    "message_bytes": (whole(200_000), r"larger|max", errors.OpFerryError),
    "unary_bytes": (whole(100), "unary call takes .* the limit is 4096", errors.TooLargeError),
    "tensor_bytes": (
        execute(*raw.small_specs(300_000)),
        "takes 9600000 bytes; the limit is 8000000",
        errors.TooLargeError,
    ),
    "request_bytes": (
        execute(*raw.small_specs(120_000)),
        "the limit is 20000000",
        errors.TooLargeError,
    ),
    "memory_bytes": (
        execute(*raw.small_specs(3_000)),
        "the limit is 400000",
        errors.TooLargeError,
    ),
    "tensor_count": (
        execute(*[raw.spec(f"t{number}", (2, 1, 8)) for number in range(7)]),
        "7 .*6",
        errors.RequestError,
    ),
    "name_bytes": (execute(raw.spec("n" * 33, (2, 1, 8))), "32", errors.RequestError),
    "rank_count": (execute(raw.spec("cos", (1,) * 5)), "5.*4", errors.RequestError),
    "repeat_count": (
        execute(options=execution_pb2.ExecutionOptions(repeat_count=11)),
        "repeat is 11; allowed is 1 to 10",
        errors.TooLargeError,
    ),
}

OF_MANY_REQUESTS = {
    "queue_count": "tests/server/test_queue.py",
    "call_count": "tests/security/test_connections.py",
    "stream_count": "HTTP/2 tells it the client, which waits",
    "case_count": "tests/validate/test_stream.py",
    "kept_bytes": "tests/validate/test_kept.py",
    "client_kept_bytes": "tests/validate/test_kept.py",
    "leased_bytes": "tests/server/test_leases.py",
    "client_leased_bytes": "tests/server/test_leases.py",
    "idle_memory_bytes": "what stays warm: nobody goes over it",
    "stream_idle_ms": "tests/server/test_queue.py",
    "queue_ms": "tests/server/test_queue.py",
    "run_ms": "tests/server/test_faults.py",
}
"""The limits that no single request goes over, and where they are tested, or why not."""


def test_every_limit_has_its_attack() -> None:
    assert ATTACKS.keys() | OF_MANY_REQUESTS.keys() == {item.name for item in fields(LimitsConfig)}
    assert not ATTACKS.keys() & OF_MANY_REQUESTS.keys()
    root = Path(__file__).parents[2]
    for where in OF_MANY_REQUESTS.values():
        assert not where.startswith("tests/") or (root / where).is_file()


@pytest.mark.parametrize("limit", ATTACKS)
def test_a_request_over_a_limit_is_refused_and_takes_nothing(address: str, limit: str) -> None:
    """It names both numbers; no memory is taken, and the next request is served."""
    attack, told, kind = ATTACKS[limit]
    with pytest.raises(kind, match=told) as refused:
        attack(address)
    assert refused.value.status.name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    with opferry.connect(address) as client:
        arguments = tnd(1, 1, 1)
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert not client.queue().requests
