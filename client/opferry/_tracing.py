"""Headers that tell a server whose span a call belongs to, where the caller traces."""

from __future__ import annotations

import sys
from typing import Any

Headers = tuple[tuple[str, str], ...]
"""gRPC's metadata."""


def trace_headers() -> Headers | None:
    """Return what names the caller's current span, by W3C's traceparent; None if there is none.

    OpenTelemetry is never loaded here: who has a span has loaded it.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    current = getattr(trace, "get_current_span", None)
    if current is None or not current().get_span_context().is_valid:
        return None
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    inject(carrier)
    return tuple((name.lower(), value) for name, value in carrier.items())
