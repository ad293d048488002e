"""All who watch a server, composed: the parts that its options ask for, and no others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from opferry.core.addresses import is_loopback
from opferry_server.config import ServerConfig
from opferry_server.identity import ANYONE
from opferry_server.jobs import Job
from opferry_server.seeing.audit import AuditLog
from opferry_server.seeing.faults import Faults
from opferry_server.seeing.gauges import Gauges
from opferry_server.seeing.history import History
from opferry_server.seeing.metrics import Metrics
from opferry_server.seeing.snapshot import Snapshots
from opferry_server.seeing.view import View
from opferry_server.served import Watcher
from opferry_server.workers.faults import Fault

if TYPE_CHECKING:
    from opferry_server.seeing.admin import Admin
    from opferry_server.seeing.live import Live
    from opferry_server.seeing.traces import Traces


TRACE_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""The standard variables that say where traces go."""


class SeeingError(Exception):
    """The server cannot be watched as its options ask; the text says why."""


class Seeing:
    """What watches one server."""

    def __init__(self, config: ServerConfig, server_id: str, version: str) -> None:
        """Watch nothing yet; see `open`.

        Args:
            config: says what is asked for.
            server_id: the server's id.
            version: of opferry.

        Raises:
            SeeingError: if the audit log cannot be opened, or the extra "trace" is missing.
        """
        self._address = config.admin_address
        self._faults = Faults()
        self._registry = CollectorRegistry()
        tenants = (ANYONE.tenant, *config.tenant_limits)
        self._metrics = Metrics(self._registry, tenants) if self._address else None
        self._history = History()
        self.watchers: tuple[Watcher, ...] = ()
        """Who is told of each request."""
        if self._metrics is not None:
            self.watchers = (self._metrics, self._history)
        self._audit = _audit_log(config, server_id)
        self._traces = _traces(config, server_id, version)
        for watcher in (self._audit, self._traces):
            if watcher is not None:
                self.watchers += (watcher,)
        self._admin: Admin | None = None
        self._live: Live | None = None

    async def open(self, view: View, serving: Callable[[], bool]) -> str:
        """Open the admin port, if there is to be one, and return its "host:port", or "".

        Args:
            view: the parts of the server.
            serving: whether it takes calls.

        Raises:
            OSError: if the address cannot be had.
        """
        if self._metrics is None:
            return ""
        # a server without the port does without aiohttp
        from opferry_server.seeing.admin import Admin
        from opferry_server.seeing.live import Live

        self._registry.register(Gauges(view, self._metrics.tenant, self._lost_count))
        private = is_loopback(self._address)
        snapshots = Snapshots(view, self._history, self._faults, private=private)
        self._live = Live(view, self._history, snapshots)
        self._admin = Admin(self._registry, serving, self._live.handlers)
        return await self._admin.open(self._address)

    async def close(self) -> None:
        """Close the admin port, and send the last spans."""
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        if self._live is not None:
            await self._live.close()
        if self._admin is not None:
            await self._admin.close()

    def reload(self) -> None:
        """Go on in a new file of the audit log, if the old one was moved away."""
        if self._audit is not None:
            self._audit.reopen()

    def finished(self, job: Job, device_s: float) -> None:
        """Hear that a worker is done with a job, which it had for some seconds."""
        if self._metrics is not None:
            self._metrics.finished(job, device_s)

    def faulted(self, fault: Fault) -> None:
        """Hear of a fault."""
        self._faults.note(fault)
        if self._metrics is not None:
            self._metrics.faulted(fault)

    def _lost_count(self) -> int:
        return 0 if self._audit is None else self._audit.lost_count


def _audit_log(config: ServerConfig, server_id: str) -> AuditLog | None:
    if not config.audit_log:
        return None
    try:
        return AuditLog(config.audit_log, server_id)
    except OSError as err:
        raise SeeingError(f"audit_log: cannot open {config.audit_log}: {err.strerror}") from err


def _traces(config: ServerConfig, server_id: str, version: str) -> Traces | None:
    if not config.trace.endpoint and not any(map(os.environ.get, TRACE_VARIABLES)):
        return None
    try:
        from opferry_server.seeing.traces import Traces
    except ModuleNotFoundError as err:
        text = f'traces are asked for and the extra "trace" is missing ({err.name})'
        raise SeeingError(f"{text}: pip install 'opferry[server,trace]'") from err
    return Traces(config.trace.endpoint, server_id, version)
