"""Whether a client's tensors can pass through memory that it shares with its server, and how.

They can where the server is on this host, offers it, and this process may connect to its lease
socket. Where not, or not now, calls send their data, and nobody is told but the debug log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from opferry._arena_try import ArenaTry
from opferry._calls import PreparedCall
from opferry._lease_connection import LeaseConnection
from opferry._result_buffers import ResultBuffers
from opferry._tries import OnProgress
from opferry.config import ClientConfig
from opferry.core.addresses import is_loopback
from opferry.core.execution import ServerInfo
from opferry.core.problems import Reason
from opferry.errors import NotSupportedError, OpFerryError

log = logging.getLogger(__name__)

HASTY_S = 1.0
"""How long a call that fits a message waits for a thread and a lease."""

RETRY_S = 30.0
"""How long nothing is tried after the lease socket could not be used."""

NOT_HERE = frozenset({Reason.LEASE_EXPIRED.value, Reason.LEASE_IN_USE.value})
"""Why a server refuses a request for its lease, and would take its data."""


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
        self,
        prepared: PreparedCall,
        info: ServerInfo,
        on_progress: OnProgress | None,
        *,
        hasty: bool,
    ) -> ArenaTry | None:
        """Return a try of a call whose inputs lie in leased memory; None: send the data.

        Args:
            prepared: the call; its inputs are written to the memory here.
            info: what the server said last.
            on_progress: what is told how far the request is.
            hasty: wait for nobody: a message would carry the call as well.
        """
        connection = self._connected(info.lease_socket)
        if connection is None:
            return None
        arena = connection.acquire(ArenaTry.size_bytes(prepared), hasty=hasty)
        if arena is None:
            log.debug("no memory is leased now")
            return None
        try:
            return ArenaTry(prepared, info.limits, on_progress, self._buffers, arena)
        except BaseException:
            arena.give_back()
            raise

    async def attempt_in_thread(
        self,
        prepared: PreparedCall,
        info: ServerInfo,
        on_progress: OnProgress | None,
        limit_s: float,
        *,
        hasty: bool,
    ) -> ArenaTry | None:
        """Do as `attempt`, and keep the event loop free while the inputs are written.

        Args:
            prepared: see `attempt`.
            info: see there.
            on_progress: see there.
            limit_s: the time for it in seconds; there may be no thread for it.
            hasty: see `attempt`.
        """
        if not self._may_connect(info.lease_socket):
            return None
        if hasty:
            limit_s = min(limit_s, HASTY_S)
        handover = _Handover(lambda: self.attempt(prepared, info, on_progress, hasty=hasty))
        making = asyncio.ensure_future(asyncio.to_thread(handover.make))
        taken = False
        try:
            await asyncio.wait((making,), timeout=limit_s)
            taken = making.done()
            return making.result() if taken else None
        finally:
            if not taken:
                making.cancel()
                handover.give_up()

    def lets_send_data(self, error: OpFerryError) -> bool:
        """Return whether a try failed for its lease alone, and note that leases do no good now."""
        # a server of an older release does not know the method
        unknown = isinstance(error, NotSupportedError) and error.reason is None
        if error.reason not in NOT_HERE and not unknown:
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
        now_s = time.monotonic()
        if self._retry_s is not None and now_s < self._retry_s:
            return False
        # nothing but a file: any other name may be chosen by whoever is there first
        if path.startswith("/"):
            return True
        if self._retry_s is not None:  # it did offer one before
            self._retry_s = now_s + RETRY_S
        return False

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


class _Handover:
    """A try that a thread makes for a caller who may be gone by then."""

    def __init__(self, make: Callable[[], ArenaTry | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._attempt: ArenaTry | None = None
        self._given_up = False

    def make(self) -> ArenaTry | None:
        """Make the try; its memory is given back at once if nobody waits for it any more."""
        attempt = self._make()
        with self._lock:
            self._attempt = attempt
            if self._given_up:
                self._give_back()
        return attempt

    def give_up(self) -> None:
        """Wait for it no longer."""
        with self._lock:
            self._given_up = True
            self._give_back()

    def _give_back(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.give_back()
