"""What is counted while requests are served, for Prometheus.

This runs once for each request: a look-up by the labels, and an addition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector

from opferry.core.problems import StatusCode
from opferry_server.jobs import Job, JobState
from opferry_server.seeing.labels import CODE_COUNT, TENANT_COUNT, Bounded
from opferry_server.seeing.tallies import Spread, Spreads, Tallies, Tally
from opferry_server.served import Served
from opferry_server.workers.faults import Fault

_WAITING = (JobState.WAITING_FOR_MEMORY, JobState.WAITING_FOR_WORKER)


@dataclass(slots=True)
class _OfJobs:
    """The metrics of jobs that are alike, each with its labels bound."""

    request_seconds: Spread
    queue_seconds: Spread
    bytes_in: Tally
    bytes_out: Tally


class Metrics:
    """The counters and histograms of a server; a watcher of its requests."""

    def __init__(self, registry: CollectorRegistry, tenants: Iterable[str] = ()) -> None:
        """Count nothing yet.

        Args:
            registry: where the metrics are found.
            tenants: those that are told apart in any case.
        """
        self.tenant = Bounded(TENANT_COUNT, tenants)
        """A tenant as labels have it."""
        self._code = Bounded(CODE_COUNT, ("",))
        self._of_jobs: dict[tuple[str, str, str], _OfJobs] = {}
        ProcessCollector(registry=registry)
        self._requests = Tallies(
            registry,
            "opferry_requests_total",
            "Requests that have ended: each call of ExecuteMany and each case of Validate is one",
            ("tenant", "method", "operator", "package", "status", "reason"),
        )
        self._streams = Tallies(
            registry,
            "opferry_streams_total",
            "Streams of ExecuteMany and Validate that have ended",
            ("tenant", "method", "status", "reason"),
        )
        self._request_seconds = Spreads(
            registry,
            "opferry_request_seconds",
            "From the first byte of a request that had a device to its last",
            ("tenant", "operator"),
        )
        self._queue_seconds = Spreads(
            registry,
            "opferry_queue_seconds",
            "How long requests that entered the queue waited for memory and for a worker",
            ("tenant", "operator"),
        )
        self._device_seconds = Tallies(
            registry,
            "opferry_device_seconds_total",
            "How long workers had requests, with the copies to the device and back",
            ("tenant", "operator", "worker"),
        )
        self._bytes = Tallies(
            registry,
            "opferry_bytes_total",
            "Tensor data of requests, but for cases, that ended well",
            ("tenant", "direction", "way"),
        )
        self._cases = Tallies(
            registry,
            "opferry_cases_total",
            "Cases of validations that were judged",
            ("tenant", "package", "verdict"),
        )
        self._faults = Tallies(
            registry,
            "opferry_device_faults_total",
            "Faults of devices by CANN's code, and workers that died without one",
            ("worker", "acl_error"),
        )

    def begun(self, served: Served) -> None:
        """Do nothing: what has begun is counted when it ends."""

    def ended(self, served: Served) -> None:
        """Count a request."""
        tenant = "" if served.identity is None else self.tenant(served.identity.tenant)
        if served.event == "request" and served.method in ("ExecuteMany", "Validate"):
            of_stream = (tenant, served.method, served.status.name, served.reason)
            self._streams.labels(*of_stream).value += 1
            return
        self._requests.labels(
            tenant,
            served.method,
            served.operator,
            served.package,
            served.status.name,
            served.reason,
        ).value += 1
        if served.job is not None:
            self._count_job(served, served.job, tenant)

    def _count_job(self, served: Served, job: Job, tenant: str) -> None:
        key = (tenant, served.operator, "network" if job.lease is None else "shared_memory")
        metrics = self._of_jobs.get(key)
        if metrics is None:
            metrics = self._of_jobs[key] = self._bind(*key)
        if job.moved_s:  # else it was refused at the door
            waiting_s = served.ended_s - job.since_s if job.state in _WAITING else 0.0
            metrics.queue_seconds.add(job.waited_s + waiting_s)
        if job.worker is not None:
            metrics.request_seconds.add(served.ended_s - served.started_s)
        if served.event == "case":
            verdict = served.verdict.lower() or "error"
            self._cases.labels(tenant, served.package, verdict).value += 1
        elif served.status is StatusCode.OK and not job.work.plan_only:
            metrics.bytes_in.value += job.checked.input_bytes
            metrics.bytes_out.value += job.checked.output_bytes

    def finished(self, job: Job, device_s: float) -> None:
        """Count the time for which a worker had a job, in seconds."""
        operator = job.checked.call.operator.name
        worker = "" if job.worker is None else job.worker.name
        self._device_seconds.labels(self.tenant(job.tenant), operator, worker).value += device_s

    def faulted(self, fault: Fault) -> None:
        """Count a fault."""
        self._faults.labels(fault.worker, self._code(fault.acl_error)).value += 1

    def _bind(self, tenant: str, operator: str, way: str) -> _OfJobs:
        return _OfJobs(
            request_seconds=self._request_seconds.labels(tenant, operator),
            queue_seconds=self._queue_seconds.labels(tenant, operator),
            bytes_in=self._bytes.labels(tenant, "in", way),
            bytes_out=self._bytes.labels(tenant, "out", way),
        )
