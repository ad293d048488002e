"""Traces of requests, for OpenTelemetry; only a server that is told where to send them has any.

A request's span begins with it, so that what comes after can refer to it. Those below it are made
when it has ended, of the times that its job keeps: a request that nobody traces pays for nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status
from opentelemetry.trace import StatusCode as SpanStatus

from opferry import wire
from opferry.core.problems import StatusCode
from opferry_server.jobs import Job, JobState
from opferry_server.served import Served

SERVERS_FAULT = {
    StatusCode.UNKNOWN,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.UNIMPLEMENTED,
    StatusCode.INTERNAL,
    StatusCode.UNAVAILABLE,
    StatusCode.DATA_LOSS,
}
"""The statuses with which a server's span counts as failed, by OpenTelemetry's conventions."""

FLUSH_MS = 3000
"""How long the last spans may take to be sent when the server ends."""


class Traces:
    """Makes spans; a watcher of requests."""

    def __init__(self, endpoint: str, server_id: str, version: str) -> None:
        """Send spans to a collector.

        Args:
            endpoint: the collector's URL for traces; "": as the standard variables OTEL_* say.
            server_id: the server's id.
            version: of opferry.
        """
        about = {"service.instance.id": server_id, "service.version": version}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            about["service.name"] = "opferry-server"
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint or None)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("opferry", version)

    def begun(self, served: Served) -> None:
        """Begin a request's span, below its caller's or its stream's."""
        if served.parent is not None and served.parent.span is not None:
            context = trace.set_span_in_context(served.parent.span)
        else:
            metadata = served.context.invocation_metadata() or ()
            context = extract({key: value for key, value in metadata if isinstance(value, str)})
        name = f"{_service(served.method)}/{served.method}"
        served.span = self._tracer.start_span(name, context, SpanKind.SERVER)

    def ended(self, served: Served) -> None:
        """End a request's span, and make those below it."""
        span: Span = served.span
        if span.is_recording():
            # spans have the time of the day, and requests that of the monotonic clock
            offset_ns = time.time_ns() - time.monotonic_ns()
            span.set_attributes(_attributes(served))
            if served.status in SERVERS_FAULT:
                span.set_status(Status(SpanStatus.ERROR, served.outcome))
            if served.job is not None:
                context = trace.set_span_in_context(span)
                for name, begin_s, end_s in _stages(served, served.job):
                    stage = self._tracer.start_span(
                        name, context, start_time=offset_ns + round(begin_s * 1e9)
                    )
                    stage.end(offset_ns + round(end_s * 1e9))
            span.end(offset_ns + round(served.ended_s * 1e9))
        else:
            span.end()

    def close(self) -> None:
        """Send what there is yet, and stop."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def _service(method: str) -> str:
    return wire.FARM_SERVICE_NAME if method in wire.farm_methods else wire.SERVICE_NAME


def _attributes(served: Served) -> dict[str, Any]:
    job = served.job
    found: dict[str, Any] = {
        "rpc.system": "grpc",
        "rpc.service": _service(served.method),
        "rpc.method": served.method,
        "rpc.grpc.status_code": int(served.status),
        "opferry.request_id": served.request_id,
        "opferry.tenant": "" if served.identity is None else served.identity.tenant,
        "opferry.operator": served.operator,
        "opferry.outcome": served.outcome,
    }
    if job is not None:
        found |= {
            "opferry.operator_package": served.package,
            "opferry.worker": "" if job.worker is None else job.worker.name,
            "opferry.device": job.device,
            "opferry.upload_bytes": job.checked.input_bytes,
            "opferry.download_bytes": job.checked.output_bytes,
        }
    return found


def _stages(served: Served, job: Job) -> Iterator[tuple[str, float, float]]:
    """Yield what a job did: a name, and its begin and end on the monotonic clock.

    What it did last lasted until the request ended.
    """
    stages = [
        ("queue", job.entered_s),
        *(
            (name, job.moved_s[state])
            for state, name in (
                (JobState.UPLOADING, "upload"),
                (JobState.WAITING_FOR_WORKER, "queue"),
                (JobState.RUNNING, "run"),
                (JobState.DONE, "verdict" if served.event == "case" else "download"),
            )
            if state in job.moved_s
        ),
    ]
    ends = [begin_s for _, begin_s in stages[1:]] + [served.ended_s]
    for (name, begin_s), end_s in zip(stages, ends, strict=True):
        yield name, begin_s, max(begin_s, end_s)
