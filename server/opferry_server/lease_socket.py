"""The socket on which clients of this host lease arenas; the front's event loop serves it.

Whoever connects is told nothing before the kernel has said which user it is. A peer that floods,
stalls or talks nonsense loses its connection, and with it its leases; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import structlog

from opferry.core.leases import MAX_MESSAGE_BYTES, LeaseMessage, LeaseWord
from opferry_server.folders import OwnFolder
from opferry_server.leases import Leases

log = structlog.get_logger()

PREFIX = "opferry-lease-"
"""How the names of all servers' folders begin, in the system's folder for temporary files."""

CONNECTION_COUNT = 64
"""The most connections at a time."""

ACCEPT_PAUSE_S = 1.0
"""How long nobody is let in when the system has no descriptor left."""

_CREDENTIALS = struct.Struct("iII")


class LeaseSocket:
    """The listening socket, in a folder of its own, and its connections."""

    def __init__(self, leases: Leases, users: frozenset[int]) -> None:
        """Serve *leases* to *users*, by number, beside the server's own; see `open`."""
        self._leases = leases
        self._users = users | {os.geteuid()}
        self._folder: OwnFolder | None = None
        self._listener: socket.socket | None = None
        # the one that was silent for the longest first
        self._connections: dict[_Connection, None] = {}
        self.path = ""
        """Where it listens; empty while it does not."""

    def open(self) -> None:
        """Listen.

        Raises:
            OSError: if there is no place for the socket, or its path is too long for one.
        """
        passable = len(self._users) > 1
        self._folder = OwnFolder(PREFIX, passable=passable)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.setblocking(False)
            path = self._folder.path / "socket"
            self._listener.bind(str(path))
            path.chmod(0o666 if passable else 0o600)
            # a crowd at the start of a job must not find the door shut
            self._listener.listen(socket.SOMAXCONN)
        except OSError:
            self.close()
            raise
        self.path = str(path)
        self._accept_again()

    def close(self) -> None:
        """Stop listening and close all connections; their leases are `Leases.close`'s."""
        self.path = ""
        for connection in list(self._connections):
            connection.close()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        if self._folder is not None:
            self._folder.close()
        self._listener = self._folder = None

    def recall(self) -> None:
        """Ask all clients for the leases that they only keep for later."""
        for connection in list(self._connections):
            connection.recall()

    def _accept_again(self) -> None:
        if self._listener is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(self._listener.fileno(), self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as err:
            # the socket stays readable: without a pause the loop would do nothing else
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener.fileno())
            loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
            log.warning("lease socket", why=str(err))
            return
        if _user_of(peer) not in self._users or not self._make_room():
            peer.close()
            return
        peer.setblocking(False)
        connection = _Connection(peer, self._leases, self._heard, self._closed)
        self._connections[connection] = None

    def _make_room(self) -> bool:
        """Return whether there is room for one more, having closed an idle one if need be."""
        if len(self._connections) >= CONNECTION_COUNT:
            idle = (peer for peer in self._connections if not self._leases.has_any(peer))
            longest = next(idle, None)
            if longest is None:
                return False
            longest.close()
        return True

    def _heard(self, connection: _Connection) -> None:
        self._connections[connection] = self._connections.pop(connection)

    def _closed(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)


class _Connection:
    """One client on the socket; the holder of its leases."""

    def __init__(
        self,
        peer: socket.socket,
        leases: Leases,
        on_heard: Callable[[_Connection], None],
        on_close: Callable[[_Connection], None],
    ) -> None:
        self._peer = peer
        self._leases = leases
        self._on_heard = on_heard
        self._on_close = on_close
        asyncio.get_running_loop().add_reader(peer.fileno(), self._on_readable)

    def close(self) -> None:
        """End the connection and its leases; a second time is harmless."""
        if self._peer.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._peer.fileno())
        self._peer.close()
        self._leases.end_all(self)
        self._on_close(self)

    def recall(self) -> None:
        """Ask for idle leases; a client that is too busy to hear is asked another time."""
        with suppress(OSError):
            self._peer.send(LeaseMessage(LeaseWord.RECALL).encode())

    def _on_readable(self) -> None:
        try:
            # without room for ancillary data: the kernel closes descriptors that come along
            data = self._peer.recv(MAX_MESSAGE_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        try:
            # an empty message is the end, too
            message = LeaseMessage.decode(data)
            self._on_heard(self)
            self._answer(message)
        except (OSError, ValueError, RecursionError):
            self.close()

    def _answer(self, message: LeaseMessage) -> None:
        """Do what a message asks for.

        Raises:
            OSError: if the client does not read its answers.
            ValueError: if it has no such lease, or the message is none of a client's.
        """
        if message.word is LeaseWord.LEASE:
            self._grant(message.size_bytes)
        elif message.word is LeaseWord.RELEASE:
            if not self._leases.end(self, message.token):
                raise ValueError("the client has no such lease")
        else:
            raise ValueError("clients do not say this")

    def _grant(self, size_bytes: int) -> None:
        lease = self._leases.grant(self, size_bytes)
        if lease is None:
            self._peer.send(LeaseMessage(LeaseWord.REFUSED).encode())
            return
        granted = LeaseMessage(LeaseWord.LEASED, lease.token, lease.arena.capacity_bytes)
        socket.send_fds(self._peer, [granted.encode()], [lease.arena.fd])


def _user_of(peer: socket.socket) -> int:
    """Return the number of the user at the other end, as this process's user namespace has it."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return int(user)
