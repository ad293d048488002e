"""Requests that break devices: one whose content faulted two different devices is refused.

A fault may be the device's or the request's. That two devices broke over the same bytes says whose
it is; without this a caller who sends such a request again and again takes out one device after the
other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from opferry.core.execution import OperatorPackage
from opferry.core.problems import Problem, Reason
from opferry.operators.call import Call

DEVICE_COUNT = 2
"""So many different devices make a request guilty."""

KEPT_COUNT = 1024
"""How many fingerprints are kept, the latest."""


class Fingerprint(NamedTuple):
    """What a request is, by its content."""

    call: bytes
    """The digest of operator, attributes and specs."""
    data: bytes
    """The digest of the inputs' data."""


def call_digest(call: Call, package: OperatorPackage) -> bytes:
    """Return the digest of a call without its data: cheap.

    The package counts, by its library: another build of the operator may do better.
    """
    which = f"{package.name}|{package.digest}|{call.operator.name}"
    text = f"{which}|{call.attributes}|{sorted(call.inputs.items())}"
    return xxhash.xxh3_128_digest(text.encode())


def data_digest(views: Iterable[memoryview]) -> bytes:
    """Return the digest of all inputs' data; takes its time, so not for the event loop."""
    digest = xxhash.xxh3_128()
    for view in views:
        digest.update(view)
    return digest.digest()


class PoisonList:
    """The fingerprints of requests that faulted devices, and which."""

    def __init__(self) -> None:
        self._devices: OrderedDict[Fingerprint, set[str]] = OrderedDict()
        self._calls: dict[bytes, int] = {}

    def suspects(self, call: bytes) -> bool:
        """Return whether a request with that call faulted a device before: then its data counts."""
        return call in self._calls

    def knows(self, fingerprint: Fingerprint) -> bool:
        """Return whether a request with that content faulted a device before."""
        return fingerprint in self._devices

    def note(self, fingerprint: Fingerprint, device: str) -> None:
        """Note that a request faulted a device: alone there, or beside others and then alone."""
        if fingerprint not in self._devices:
            self._calls[fingerprint.call] = self._calls.get(fingerprint.call, 0) + 1
        self._devices.setdefault(fingerprint, set()).add(device)
        self._devices.move_to_end(fingerprint)
        if len(self._devices) > KEPT_COUNT:
            oldest, _ = self._devices.popitem(last=False)
            self._calls[oldest.call] -= 1
            if not self._calls[oldest.call]:
                del self._calls[oldest.call]

    def check(self, fingerprint: Fingerprint) -> None:
        """Refuse a request that faulted `DEVICE_COUNT` devices.

        Raises:
            Problem: REQUEST_POISONED.
        """
        devices = self._devices.get(fingerprint, set())
        if len(devices) >= DEVICE_COUNT:
            raise Problem(
                Reason.REQUEST_POISONED,
                f"the same request has faulted {', '.join(sorted(devices))}; it is refused until "
                "the server is restarted",
                given=", ".join(sorted(devices)),
            )
