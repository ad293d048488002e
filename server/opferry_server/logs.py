"""Where log lines go: to stderr, by a thread of its own, and never at the cost of a request.

A reader of stderr that stops reading, or goes away, must not stop the server: lines that cannot be
written are dropped.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import sys
import threading
import time
from typing import Protocol, TextIO

import structlog

from opferry_server.config import ServerConfig

LINE_COUNT = 10_000
"""How many lines wait for the writer at the most; later ones are dropped."""

GATHER_S = 0.02
"""How long the writer waits for more lines: each time that it wakes, it stops what else runs."""

FLUSH_S = 1.0
"""How long the end of the process waits for the last lines."""


class Writable(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> int:
        """Write a text; it may raise OSError or ValueError."""

    def flush(self) -> None:
        """Hand what was written to the system, as `write`."""


class LogStream:
    """A text stream that never blocks and never fails."""

    def __init__(self, stream: Writable) -> None:
        """Write to *stream* from a thread."""
        self._stream = stream
        self.lost_count = 0
        """How many texts could not be written."""
        self._lines: queue.Queue[str] = queue.Queue(LINE_COUNT)
        threading.Thread(target=self._write_all, daemon=True).start()
        atexit.register(self._drain)

    def write(self, text: str) -> int:
        """Take a text in; it is dropped if the writer is too far behind."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.lost_count += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: the writer flushes."""

    def _write_all(self) -> None:
        while True:
            texts = [self._lines.get()]
            time.sleep(GATHER_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    texts.append(self._lines.get_nowait())
            try:
                self._stream.write("".join(texts))
                self._stream.flush()
            except (OSError, ValueError):
                self.lost_count += len(texts)
            for _ in texts:
                self._lines.task_done()

    def _drain(self) -> None:
        done = threading.Thread(target=self._lines.join, daemon=True)
        done.start()
        done.join(FLUSH_S)


def configure_logging(config: ServerConfig) -> None:
    """Log to stderr; gRPC's own warnings included. Nothing ever logs a message's content."""
    renderer = (
        structlog.processors.JSONRenderer()
        if config.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    stream: TextIO = LogStream(sys.stderr)  # type: ignore[assignment]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(config.log_level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=stream)
