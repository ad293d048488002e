"""What is kept of unary requests: it holds for the same request with other data, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.execution import OperatorPackage
from opferry.core.limits import LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.operators.call import Call, check_call
from opferry.v1 import operator_service_pb2 as pb
from opferry_server import unary
from opferry_server.jobs import Order
from opferry_server.unary import UnaryMethod
from tests.support import raw
from tests.support.calls import ROTARY_GRAD

NAMES = ("grad_query_embed", "grad_key_embed", "cos", "sin")


class Known:
    """A method that counts what it has to check."""

    def __init__(self) -> None:
        self.limits = LimitsConfig()
        self.package = OperatorPackage(digest="1")
        self.checked: list[Call] = []
        self.method = UnaryMethod(ROTARY_GRAD, self.limits, self._order, lambda _: self.package)

    def _order(self, call: Call) -> Order:
        self.checked.append(call)
        return Order(check_call(call, self.limits), self.package)

    def take(self, request: Any) -> tuple[Order, dict[str, bytes]]:
        order, data = self.method.take(self.method.part(request))
        return order, {name: bytes(view) for name, view in data.items()}


def request(fill: int = 0, tokens: int = 2, **changes: Any) -> pb.ApplyRotaryPosEmbGradRequest:
    """Return a valid request whose data are filled with a byte."""
    message = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND, **changes)
    for item in raw.small_specs(tokens):
        tensor = getattr(message, item.name)
        tensor.spec.CopyFrom(item)
        tensor.data = bytes([fill]) * item.data_bytes
    return message


def serialized(message: pb.ApplyRotaryPosEmbGradRequest) -> bytes:
    return message.SerializeToString()


def test_the_same_request_with_other_data_is_checked_once() -> None:
    """Each has its own data all the same."""
    known = Known()
    orders = []
    for fill in range(5):
        order, data = known.take(serialized(request(fill)))
        orders.append(order)
        assert data == {name: bytes([fill]) * 64 for name in NAMES}
    assert len(known.checked) == 1
    assert all(order is orders[0] for order in orders)


@given(st.integers(1, 6), st.booleans(), st.integers(0, 3))
def test_whatever_differs_but_data_is_checked(tokens: int, skip: bool, repeat: int) -> None:
    """After any other request a request means what it means alone."""
    options = {"skip_contract_check": skip, "repeat_count": repeat}
    message = serialized(request(1, tokens, options=options))
    alone, shared = Known(), Known()
    shared.take(serialized(request()))
    expected, found = alone.take(message)[0], shared.take(message)[0]
    assert found.checked == expected.checked
    assert found.work == expected.work
    assert found.call_digest == expected.call_digest


def test_what_is_known_is_checked_for_the_size_of_its_data() -> None:
    """A request that came before does not speak for the data of this one."""
    known = Known()
    known.take(serialized(request()))
    torn = request()
    torn.sin.data = torn.sin.data[:-1]
    with pytest.raises(Problem) as caught:
        known.take(serialized(torn))
    assert caught.value.message == "sin declares 64 data bytes and has 63"


def test_a_refusal_is_not_kept_as_known() -> None:
    """It is refused each time, and nothing is remembered of it."""
    known = Known()
    odd = request()
    odd.cos.spec.shape[2] = 7
    for _ in range(2):
        with pytest.raises(Problem) as caught:
            known.take(serialized(odd))
        assert caught.value.reason is Reason.TENSOR_MALFORMED
    unknown = serialized(request()) + b"\xf8\x07\x01"
    known.take(serialized(request()))
    with pytest.raises(Problem) as caught:
        known.take(unknown)
    assert caught.value.reason is Reason.FIELD_UNKNOWN


def test_digests_are_those_of_the_request() -> None:
    """They go with the data, and so are not kept."""
    known = Known()
    for digest in (b"12345678", b"abcdefgh"):
        message = request()
        message.cos.spec.xxh3_64 = digest
        order, _ = known.take(serialized(message))
        assert order.checked.call.digests == {"cos": digest}
    assert len(known.checked) == 2


def test_another_build_of_the_package_is_another_order() -> None:
    """What a package is may change while the server runs."""
    known = Known()
    before, _ = known.take(serialized(request()))
    known.package = replace(known.package, digest="2")
    after, _ = known.take(serialized(request()))
    assert (before.package.digest, after.package.digest) == ("1", "2")
    assert before.call_digest != after.call_digest


def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different ones come, memory stays bounded; one that is used again stays."""
    monkeypatch.setattr(unary, "KNOWN_COUNT", 3)
    known = Known()
    for tokens in (1, 2, 3, 1, 4, 1, 2):
        known.take(serialized(request(0, tokens)))
    assert len(known.checked) == 5  # 1, 2, 3, 4, and 2 again
