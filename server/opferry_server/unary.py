"""Requests of operators' own methods, which carry all their data in one message.

Small calls come by the thousand and differ in nothing but their data, so what was found of a
request without its data is kept and holds for the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from opferry import wire
from opferry.core.execution import Execution, OperatorPackage
from opferry.core.limits import LimitsConfig, too_large
from opferry.operators.base import Operator
from opferry.operators.call import Call
from opferry_server.jobs import Job, Order

KNOWN_COUNT = 256
"""How many orders of an operator are kept, those used last."""


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
        self._describe_package = describe_package
        self._response = wire.methods[operator.name].response
        self._known: OrderedDict[bytes, Order] = OrderedDict()

    def take(self, request: Any) -> tuple[Order, Mapping[str, bytes]]:
        """Return what a request asks for, and the inputs' data by name, of the sizes declared.

        Args:
            request: of the operator's request message; its data is taken out.

        Raises:
            Problem: if it is not well formed, breaks the contract or goes over a limit.
        """
        data = wire.take_data(self._operator, request)
        key = request.SerializeToString(deterministic=True)
        order = self._known.get(key)
        if order is None or order.package != self._describe_package(order.package.name):
            order = self._read(request)
        if not order.checked.call.digests:  # they go with the data
            self._known[key] = order
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_COUNT:
                self._known.popitem(last=False)
        wire.check_data(order.checked.call, data)
        return order, data

    def response(self, job: Job, execution: Execution, digests: Mapping[str, bytes]) -> Any:
        """Return the response to a job that ran, with a copy of its outputs."""
        tensors = {
            name: wire.tensor_message(name, spec, job.output(name), digests.get(name, b""))
            for name, spec in job.checked.outputs.items()
        }
        return self._response(execution=wire.execution_message(execution), **tensors)

    def _read(self, request: Any) -> Order:
        order = self._order_of(wire.call_from_unary(self._operator, request, self._limits))
        for what, size in (
            ("inputs", order.checked.input_bytes),
            ("outputs", order.checked.output_bytes),
        ):
            if size > self._limits.unary_bytes:
                raise too_large(f"{what} of a unary call", size, self._limits.unary_bytes)
        return order
