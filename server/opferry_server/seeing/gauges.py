"""What Prometheus is told of a server's state: looked up when it asks, and at no other time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from opferry.core.execution import ServerInfo
from opferry_server.jobs import JobState
from opferry_server.seeing.connections import connection_count
from opferry_server.seeing.view import View

STATES = {
    JobState.WAITING_FOR_MEMORY: "waiting_for_memory",
    JobState.UPLOADING: "uploading",
    JobState.WAITING_FOR_WORKER: "waiting_for_worker",
    JobState.RUNNING: "running",
}
"""The states of requests inside, as labels and the page have them."""


class Gauges(Collector):
    """The state of a server."""

    def __init__(self, view: View, tenant: Callable[[str], str], lost: Callable[[], int]) -> None:
        """Look at a server.

        Args:
            view: its parts.
            tenant: returns a tenant as labels have it.
            lost: returns how many lines of the audit log are lost.
        """
        self._view = view
        self._tenant = tenant
        self._lost = lost

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known once somebody asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the state."""
        info = self._view.describe()
        yield from self._server(info)
        yield from self._requests()
        yield from self._memory(info)
        yield from self._workers()
        lost = CounterMetricFamily(
            "opferry_audit_lines_lost", "Lines of the audit log that could not be written"
        )
        lost.add_metric((), self._lost())
        yield lost

    def _server(self, info: ServerInfo) -> Iterator[Metric]:
        address = self._view.address()
        about = InfoMetricFamily("opferry", "What the server is")
        about.add_metric(
            (),
            {
                "version": info.opferry_version,
                "server_id": info.server_id,
                "backend": info.backend,
                "real_device": str(info.real_device).lower(),
            },
        )
        yield about
        yield _gauge("opferry_serving", "1 while the server takes calls", float(info.serving))
        yield _gauge(
            "opferry_connections",
            "Connections to the server's address, by what the kernel says",
            connection_count(address) if address else 0,
        )

    def _requests(self) -> Iterator[Metric]:
        inside = GaugeMetricFamily(
            "opferry_queue_requests",
            "Requests inside, by what they do",
            labels=("state", "tenant"),
        )
        counts = Counter((STATES[job.state], self._tenant(job.tenant)) for job in self._view.jobs())
        for labels, count in sorted(counts.items()):
            inside.add_metric(labels, count)
        yield inside
        yield _gauge(
            "opferry_queue_places",
            "Requests that a tenant without limits of its own may have inside",
            self._view.place_count(),
        )

    def _memory(self, info: ServerInfo) -> Iterator[Metric]:
        pool, leased = self._view.pool, self._view.leases.leased_bytes
        arenas = GaugeMetricFamily(
            "opferry_arena_bytes", "Memory for requests' tensors, by who has it", labels=("state",)
        )
        arenas.add_metric(("used",), self._view.used_bytes())
        arenas.add_metric(("leased",), leased)
        arenas.add_metric(("idle",), pool.idle_bytes)
        yield arenas
        yield _gauge(
            "opferry_arena_limit_bytes",
            "What that memory may come to; requests beyond it wait",
            info.limits.memory_bytes,
        )
        yield _gauge(
            "opferry_kept_bytes", "Validations' data in files", self._view.kept.total_bytes
        )

    def _workers(self) -> Iterator[Metric]:
        labels = ("worker", "device")
        ready = GaugeMetricFamily(
            "opferry_worker_ready", "1 while the worker takes requests", labels=labels
        )
        running = GaugeMetricFamily(
            "opferry_worker_running", "Requests that the worker has", labels=labels
        )
        quarantined = GaugeMetricFamily(
            "opferry_worker_quarantined",
            "1 while the device is out of service, for now or for good",
            labels=labels,
        )
        memory = GaugeMetricFamily(
            "opferry_worker_memory_bytes",
            "Memory of the worker's own, without tensors",
            labels=labels,
        )
        restarts = CounterMetricFamily(
            "opferry_worker_restarts",
            "How often the worker's process was replaced, as planned or not",
            labels=("worker",),
        )
        for process in self._view.workers:
            worker = process.describe()
            where = (worker.name, worker.device)
            ready.add_metric(where, float(worker.ready))
            running.add_metric(where, worker.running_count)
            quarantined.add_metric(where, float(worker.quarantined))
            memory.add_metric(where, process.memory_bytes)
            restarts.add_metric((worker.name,), worker.restart_count)
        leases = GaugeMetricFamily(
            "opferry_device_leases", "Leases of devices", labels=("state", "tenant")
        )
        counts = Counter(
            ("granted" if lease.granted else "waiting", self._tenant(lease.tenant))
            for lease in self._view.device_leases()
        )
        for labels, count in sorted(counts.items()):
            leases.add_metric(labels, count)
        yield from (ready, running, quarantined, restarts, memory, leases)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    found = GaugeMetricFamily(name, help_text)
    found.add_metric((), value)
    return found
