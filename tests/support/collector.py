"""A collector of traces: takes OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Collector:
    """The spans that were sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []
        """OTLP's spans, in the order in which they came."""
        self.services: set[str] = set()
        """The names of the services that sent them."""

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Any) -> list[Any]:
        """Return the spans right below another, in the order in which they began."""
        children = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(children, key=lambda span: int(span.start_time_unix_nano))


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes."""
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes
    }


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector for the length of a `with` block; skips the test without OpenTelemetry."""
    service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
        reason='the extra "trace" is not installed',
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            for group in service.ExportTraceServiceRequest.FromString(body).resource_spans:
                for item in group.resource.attributes:
                    if item.key == "service.name":
                        found.services.add(item.value.string_value)
                for scope in group.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
