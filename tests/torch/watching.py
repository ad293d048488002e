"""A client that notes what it is given to send."""

from __future__ import annotations

from typing import Any

import numpy as np

import opferry
from opferry._calls import PreparedCall
from opferry._connect import client_config
from opferry.operators.call import CallResult


class WatchedClient(opferry.Client):
    """Notes each call before it is made."""

    @classmethod
    def connect(cls, target: str) -> WatchedClient:
        client = cls(client_config(target, timeout=60))
        client.calls = []
        return client

    calls: list[PreparedCall]

    @property
    def names(self) -> list[tuple[str, tuple[str, ...]]]:
        """The operator of each call, and the inputs that it had."""
        return [(each.call.operator.name, tuple(each.call.inputs)) for each in self.calls]

    def _execute(self, prepared: PreparedCall, *others: Any) -> CallResult:
        self.calls.append(prepared)
        return super()._execute(prepared, *others)


def address(prepared: PreparedCall, name: str) -> int:
    """Return where the bytes of an input lie that the transport is given."""
    return int(np.frombuffer(prepared.data[name], np.uint8).ctypes.data)
