"""Traces: a server's spans below the caller's, and nothing of them where nobody traces."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import opferry
from opferry import aio, errors
from opferry._tracing import trace_headers
from opferry.embedded import EmbeddedServer
from tests.support import servers
from tests.support.calls import tnd
from tests.support.collector import Collector, attributes, collector
from tests.support.processes import eventually
from tests.support.suites import OPERATOR, TND

SERVICE = "opferry.v1.OperatorService"
ONCE = opferry.RetryConfig(attempts=1)


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def server(collected: Collector) -> Iterator[EmbeddedServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with servers.embedded("CrashBackend", options={"trace.endpoint": collected.url}) as found:
            yield found


@pytest.fixture
def tracer() -> Any:
    """What makes a caller's spans, which nobody collects."""
    provider = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider()
    return provider.get_tracer("caller")


def spans_of(collected: Collector, caller: Any) -> list[Any]:
    """Return a caller's span's children, once they have come."""
    span_id = caller.get_span_context().span_id.to_bytes(8, "big")

    def children() -> list[Any]:
        return [span for span in collected.spans if span.parent_span_id == span_id]

    assert eventually(lambda: bool(children()))
    return children()


def stages(collected: Collector, span: Any) -> list[str]:
    """Return the names of the spans below another, which are within it, one after the other."""
    found = collected.below(span)
    at = int(span.start_time_unix_nano) - 1_000_000  # the clocks are read one after the other
    for stage in found:
        assert at <= int(stage.start_time_unix_nano) <= int(stage.end_time_unix_nano)
        at = int(stage.end_time_unix_nano)
    assert at <= int(span.end_time_unix_nano) + 1_000_000
    return [stage.name for stage in found]


def test_a_call_is_a_span_below_its_callers(
    collected: Collector, server: EmbeddedServer, tracer: Any
) -> None:
    """Unary or stream, by either client: with what it did below it."""
    with opferry.connect(server.address, shared_memory=False) as client:
        client.server_info()
        for arguments, method in ((tnd(2), "ApplyRotaryPosEmbGrad"), (tnd(6000), "Execute")):
            with tracer.start_as_current_span("caller") as caller:
                client.apply_rotary_pos_emb_grad(**arguments)
            spans = [
                span for span in spans_of(collected, caller) if span.name == f"{SERVICE}/{method}"
            ]
            (span,) = spans
            assert stages(collected, span) == ["queue", "upload", "queue", "run", "download"]
            told = attributes(span)
            assert told["rpc.grpc.status_code"] == 0
            assert told["opferry.tenant"] == "anonymous"
            assert told["opferry.worker"] == "worker-0"
            assert told["opferry.operator"] == "ApplyRotaryPosEmbGrad"

    async def by_aio() -> Any:
        async with aio.connect(server.address) as other:
            with tracer.start_as_current_span("caller") as caller:
                await other.apply_rotary_pos_emb_grad(**tnd(2))
        return caller

    names = {span.name for span in spans_of(collected, asyncio.run(by_aio()))}
    assert f"{SERVICE}/ApplyRotaryPosEmbGrad" in names
    assert collected.services == {"opferry-server"}


def test_calls_and_cases_of_a_stream_are_below_it(
    collected: Collector, server: EmbeddedServer, tracer: Any
) -> None:
    """The stream's span below the caller's, theirs below that."""
    inputs = {name: value for name, value in tnd().items() if name != "layout"}
    with opferry.connect(server.address) as client:
        client.server_info()
        with tracer.start_as_current_span("caller") as caller:
            list(client.execute_many(OPERATOR, [inputs] * 3, attributes=TND))
        (stream,) = spans_of(collected, caller)
        assert stream.name == f"{SERVICE}/ExecuteMany"
        assert eventually(lambda: len(collected.below(stream)) == 3)
        with tracer.start_as_current_span("caller") as caller:
            client.validate(OPERATOR, inputs, attributes=TND)
    (stream,) = spans_of(collected, caller)
    (case,) = collected.below(stream)
    assert stages(collected, case) == ["queue", "upload", "queue", "run", "verdict"]


def test_what_fails_is_told(collected: Collector, server: EmbeddedServer, tracer: Any) -> None:
    """A fault of the server's marks the span; a caller's mistake does not."""
    with opferry.connect(server.address, retry=ONCE) as client:
        client.server_info()
        with tracer.start_as_current_span("caller") as caller, pytest.raises(errors.OpFerryError):
            client.apply_rotary_pos_emb_grad(**tnd(cos=-9))
        (span,) = spans_of(collected, caller)
        assert attributes(span)["opferry.outcome"] == "DEVICE_FAULT"
        assert span.status.code == 2
        with tracer.start_as_current_span("caller") as caller, pytest.raises(errors.OpFerryError):
            client.apply_rotary_pos_emb_grad(**tnd(), operator_package="absent")
    (span,) = spans_of(collected, caller)
    assert attributes(span)["opferry.outcome"] == "OPERATOR_PACKAGE_UNKNOWN"
    assert span.status.code == 0


def test_a_caller_that_does_not_trace_sends_nothing() -> None:
    """And loads nothing of OpenTelemetry."""
    assert trace_headers() is None
    code = (
        "import sys; from opferry._tracing import trace_headers; assert trace_headers() is None; "
        "sys.exit(any(m.startswith('opentelemetry') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_extra_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that is to trace and cannot does not start."""
    command = (
        "import sys; sys.modules['opentelemetry'] = None; sys.argv[1:] = "
        "['--trace.endpoint', 'http://127.0.0.1:1/v1/traces', '--address', '127.0.0.1:0'];"
        "from opferry_server.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'the extra "trace" is missing' in done.stderr
