"""A server's admin port, as Prometheus and people read it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.servers import free_port


@dataclass(frozen=True)
class Reply:
    """What the port answered."""

    status: int
    """HTTP's."""
    headers: Mapping[str, str]
    """By name."""
    text: str
    """The body."""


class Admin:
    """An admin port that a server is to open."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self.lines = (f'admin_address = "{self.address}"',)
        """What the server's file says."""
        self.options = {"admin-address": self.address}
        """The same for an embedded one."""

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Return what it answers to a request."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.headers), reply.read().decode())
        finally:
            connection.close()

    def samples(self) -> list[Sample]:
        """Return all samples of the metrics."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        return [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels, 0 if there is none."""
        return _sum(self.samples(), name, labels)

    def since_now(self) -> Callable[..., float]:
        """Return what tells, as `value` does, by how much a metric has grown since this call."""
        before = self.samples()
        return lambda name, **labels: self.value(name, **labels) - _sum(before, name, labels)


def _sum(samples: list[Sample], name: str, labels: Mapping[str, str]) -> float:
    return sum(
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
