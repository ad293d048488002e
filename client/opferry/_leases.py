"""Whether a client's tensors can pass through memory that it shares with its server, and how.

They can where the server is on this host, offers it, and this process may connect to its lease
socket. Where not, or not now, calls send chunks, and nobody is told but the debug log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time

from opferry._arena_try import ArenaTry
from opferry._calls import PreparedCall
from opferry._lease_connection import LeaseConnection
from opferry._result_buffers import ResultBuffers
from opferry._tries import OnProgress
from opferry.config import ClientConfig
from opferry.core.addresses import is_loopback
from opferry.core.execution import ServerInfo
from opferry.core.problems import Reason
from opferry.errors import OpFerryError

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""How long nothing is tried after the lease socket could not be used."""

NOT_HERE = frozenset({Reason.LEASE_EXPIRED.value, Reason.LEASE_IN_USE.value})
"""Why a server refuses a request for its lease, and would take it in chunks."""


class Leases:
    """The leases of one client, for many threads."""

    def __init__(self, config: ClientConfig, buffers: ResultBuffers) -> None:
        """Lease nothing yet."""
        # elsewhere the path in server information is another host's
        self._wanted = (
            config.shared_memory and is_loopback(config.target) and sys.platform == "linux"
        )
        self._buffers = buffers
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._connection: LeaseConnection | None = None
        self._retry_s: float | None = None  # from when on a lost connection may be made again
        self._closed = False

    def are_stale(self) -> bool:
        """Return whether the server is to be asked anew where its lease socket is."""
        if not self._wanted or self._closed or os.getpid() != self._process:
            return False
        with self._lock:
            lost = self._connection
            if lost is not None and not lost.is_open:
                # if its server has ended, another may be there already
                self._connection = None
                self._retry_s = time.monotonic() + (0.0 if lost.is_sound else RETRY_S)
            return self._retry_s is not None and time.monotonic() >= self._retry_s

    def attempt(
        self, prepared: PreparedCall, info: ServerInfo, on_progress: OnProgress | None
    ) -> ArenaTry | None:
        """Return a try of a call whose inputs lie in leased memory; None: send chunks.

        Args:
            prepared: the call; its inputs are written to the memory here.
            info: what the server said last.
            on_progress: what is told how far the request is.
        """
        connection = self._connected(info.lease_socket)
        if connection is None:
            return None
        arena = connection.acquire(ArenaTry.size_bytes(prepared))
        if arena is None:
            log.debug("no memory is leased now")
            return None
        try:
            return ArenaTry(prepared, info.limits, on_progress, self._buffers, arena)
        except BaseException:
            arena.give_back()
            raise

    async def attempt_in_thread(
        self, prepared: PreparedCall, info: ServerInfo, on_progress: OnProgress | None
    ) -> ArenaTry | None:
        """Do as `attempt`, and keep the event loop free while the inputs are written."""
        if not self._may_connect(info.lease_socket):
            return None
        making = asyncio.ensure_future(asyncio.to_thread(self.attempt, prepared, info, on_progress))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_give_back)
            raise

    def lets_send_chunks(self, error: OpFerryError) -> bool:
        """Return whether a try failed for its lease alone, and note that leases do no good now."""
        if error.reason not in NOT_HERE:
            return False
        log.debug("the server does not know the lease: %s", error)
        with self._lock:
            connection, self._connection = self._connection, None
            self._retry_s = time.monotonic() + RETRY_S
        if connection is not None:
            connection.close()
        return True

    def close(self) -> None:
        """Lease no more; results that are still looked at stay. Callable from a finalizer."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.close()

    def _may_connect(self, path: str) -> bool:
        """Return whether there is a connection, or one may be made."""
        if not self._wanted or self._closed or os.getpid() != self._process:
            return False
        if self._connection is not None:
            return True
        # nothing but a file: any other name may be chosen by whoever is there first
        return path.startswith("/") and (self._retry_s is None or time.monotonic() >= self._retry_s)

    def _connected(self, path: str) -> LeaseConnection | None:
        if not self._may_connect(path):
            return None
        with self._lock:
            if self._connection is not None:
                return self._connection
            try:
                self._connection = LeaseConnection(path)
            except (OSError, ValueError) as error:
                log.debug("no shared memory by %s: %s", path, error)
                self._retry_s = time.monotonic() + RETRY_S
                return None
            self._retry_s = None
            if self._closed:  # meanwhile
                self._connection.close()
            return self._connection


def _give_back(making: asyncio.Future[ArenaTry | None]) -> None:
    """Give back the memory of a try whose caller was cancelled while it was made."""
    if not making.cancelled() and making.exception() is None:
        attempt = making.result()
        if attempt is not None:
            attempt.give_back()
