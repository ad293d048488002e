"""Requests of operators' own methods, which carry all their data in one message.

Small calls come by the thousand and differ in nothing but their data, so what was found of a
request without its data is kept and holds for the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from opferry import wire
from opferry.core.execution import Execution, OperatorPackage
from opferry.core.limits import LimitsConfig, too_large
from opferry.core.problems import Problem, Reason
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry_server.jobs import Job, Order

KNOWN_COUNT = 256
"""How many orders of a method are kept, those used last."""


class KnownOrders:
    """The orders of requests that were found right, by the request without its data."""

    def __init__(self, describe_package: Callable[[str], OperatorPackage]) -> None:
        """Know none; *describe_package* returns an operator package as it is now, by its name."""
        self._describe_package = describe_package
        self._orders: OrderedDict[bytes, Order] = OrderedDict()

    def get(self, key: bytes) -> Order | None:
        """Return the order of a request, if it is known and its operator package as it was."""
        order = self._orders.get(key)
        if order is None or order.package != self._describe_package(order.package.name):
            return None
        self._orders.move_to_end(key)
        return order

    def keep(self, key: bytes, order: Order) -> None:
        """Know an order from now on, unless it holds digests: they go with the data."""
        if order.checked.call.digests:
            return
        self._orders[key] = order
        self._orders.move_to_end(key)
        if len(self._orders) > KNOWN_COUNT:
            self._orders.popitem(last=False)


class UnaryMethod:
    """Requests and responses of one operator's method."""

    def __init__(
        self,
        operator: Operator,
        limits: LimitsConfig,
        order_of: Callable[[Call], Order],
        describe_package: Callable[[str], OperatorPackage],
    ) -> None:
        """Read requests, knowing none yet.

        Args:
            operator: the operator.
            limits: the server's limits.
            order_of: checks a call and returns its order.
            describe_package: returns an operator package as it is now, by its name.
        """
        self._operator = operator
        self._limits = limits
        self._order_of = order_of
        self._method = wire.methods[operator.name]
        self._known = KnownOrders(describe_package)

    def part(self, frame: bytes) -> wire.Parted:
        """Return a serialised request and, apart from it, its data.

        Raises:
            Problem: STREAM_PROTOCOL.
        """
        try:
            return wire.part(self._method.request, frame)
        except DecodeError as error:
            raise self._unreadable() from error

    def take(self, request: wire.Parted) -> tuple[Order, Mapping[str, memoryview]]:
        """Return what a request asks for, and the inputs' data by name, of the sizes declared.

        Raises:
            Problem: if it is not well formed, breaks the contract or goes over a limit.
        """
        key, data = request
        order = self._known.get(key)
        if order is None:
            order = self._read(key)
            self._known.keep(key, order)
        wire.check_data(order.checked.call, data)
        return order, data

    def response(self, job: Job, execution: Execution, digests: Mapping[str, bytes]) -> bytes:
        """Return the serialised response to a job that ran, with a copy of its outputs."""
        outputs = job.checked.outputs
        tensors = {
            name: wire.tensor_without_data(name, spec, digests.get(name, b""))
            for name, spec in outputs.items()
        }
        without = self._method.response(execution=wire.execution_message(execution))
        return wire.joined(
            self._method.response,
            wire.Unfilled(without.SerializeToString(), tensors),
            {name: job.output(name) for name in outputs},
        )

    def _unreadable(self) -> Problem:
        text = f"the request is no {self._method.request.DESCRIPTOR.full_name}"
        return Problem(Reason.STREAM_PROTOCOL, text)

    def _read(self, serialized: bytes) -> Order:
        try:
            request = self._method.request.FromString(serialized)
        except DecodeError as error:
            raise self._unreadable() from error
        order = self._order_of(wire.call_from_unary(self._operator, request, self._limits))
        for what, size in (
            ("inputs", order.checked.input_bytes),
            ("outputs", order.checked.output_bytes),
        ):
            if size > self._limits.unary_bytes:
                raise too_large(f"{what} of a unary call", size, self._limits.unary_bytes)
        return order
