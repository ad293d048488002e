"""The audit log: who ran what, one line for each request, in a file of its own.

Lines are written by a thread: a disk that is slow or full costs no request. What is lost is
counted.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import TextIO

from opferry_server.logs import LogStream
from opferry_server.served import Served

MODE = 0o600
"""Who may read the file: it tells who works on what."""


class ReopenedFile:
    """A file that is written at its end, and opened again when it was moved away."""

    def __init__(self, path: str) -> None:
        """Open *path*, making it if it is not there.

        Raises:
            OSError: if it cannot be opened.
        """
        self._path = path
        self._file = self._open()
        self._moved = False

    def reopen(self) -> None:
        """Have the next lines in a file that is there under the path then; for any thread."""
        self._moved = True

    def write(self, text: str) -> int:
        """Write a text.

        Raises:
            OSError: if it cannot be written.
        """
        if self._moved:
            opened = self._open()
            self._file.close()
            self._file, self._moved = opened, False
        return self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system.

        Raises:
            OSError: if it cannot be written.
        """
        self._file.flush()

    def _open(self) -> TextIO:
        return open(self._path, "a", encoding="utf-8", opener=_private)


class AuditLog:
    """Writes a line for each request; a watcher of them."""

    def __init__(self, path: str, server_id: str) -> None:
        """Write to the file *path*, as the server *server_id*.

        Raises:
            OSError: if it cannot be opened.
        """
        self._server_id = server_id
        self._file = ReopenedFile(path)
        self._lines = LogStream(self._file)

    @property
    def lost_count(self) -> int:
        """How many lines could not be written."""
        return self._lines.lost_count

    def reopen(self) -> None:
        """Go on in a new file, if the old one was moved away."""
        self._file.reopen()

    def begun(self, served: Served) -> None:
        """Do nothing: a line tells what came of a request."""

    def ended(self, served: Served) -> None:
        """Write a request's line."""
        who, job = served.identity, served.job
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "server_id": self._server_id,
            "request_id": served.request_id,
            "stream_id": "" if served.parent is None else served.parent.request_id,
            "tenant": "" if who is None else who.tenant,
            "subject": "" if who is None else who.subject,
            "role": "" if who is None else who.role.word,
            "peer": served.context.peer(),
            "event": served.event,
            "method": served.method,
            "operator": served.operator,
            "operator_package": served.package,
            "package_digest": "" if job is None else job.package.digest,
            "device": "" if job is None else job.device,
            "upload_bytes": 0 if job is None else job.checked.input_bytes,
            "download_bytes": 0 if job is None else job.checked.output_bytes,
            "outcome": served.outcome,
            "status": served.status.name,
            "total_ms": round((served.ended_s - served.started_s) * 1000, 3),
        }
        self._lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, MODE)
