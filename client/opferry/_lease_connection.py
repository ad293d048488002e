"""One connection to a server's lease socket, and the memory that was leased on it.

A thread listens to the socket and takes back what nobody looks at any more. Views of results die at
any point of any thread, also inside of this module's own critical sections, when the garbage
collector runs there: so `give_back` and `close` take no lock but that of `_Wake`, which is
reentrant.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import threading
import time
from collections import deque

from opferry._leased_arena import LEAST_BYTES, LeasedArena, mapped, size_class
from opferry.core.leases import MAX_MESSAGE_BYTES, LeaseMessage, LeaseWord

ANSWER_S = 1.0
"""How long the server may take to answer: it has only to make memory that nobody has touched."""

HASTY_COUNT = 8
"""Calls that can do without leave it at so many leases: the rest is for those that cannot well."""

REFUSED_S = 1.0
"""How long they ask for none after one was refused."""

IDLE_BYTES = 2**30
"""The most memory that is kept for later calls while nobody uses it."""

IDLE_S = 30.0
"""How long it is kept: as long as the server keeps memory that nobody uses."""


class LeaseConnection:
    """A connection, for many threads of the process that made it."""

    def __init__(self, path: str) -> None:
        """Connect.

        Raises:
            OSError: if nobody listens at *path*, or not to this user, or not of this kind.
        """
        self._process = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(ANSWER_S)
            self._socket.connect(path)
            self._socket.setblocking(False)
            self._wake = _Wake()
        except OSError:
            self._socket.close()
            raise
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[LeaseMessage, int] | None] = queue.SimpleQueue()
        self._returned: deque[LeasedArena] = deque()
        self._idle: list[LeasedArena] = []  # the longest idle first
        self._lent_count = 0
        self._closed = False
        self._refused_s = -REFUSED_S  # when the last lease was refused
        # whether the listener looks at the time; it does as long as anything is lent
        self._timed = False
        self.is_sound = False
        """Whether memory was leased here, and nothing was wrong but that the server ended."""
        # a daemon: it must not keep a process from ending
        threading.Thread(target=self._listen, name="opferry-leases", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Whether memory can be leased here."""
        return not self._closed and os.getpid() == self._process

    def acquire(self, size_bytes: int, *, hasty: bool = False) -> LeasedArena | None:
        """Return at least so much memory, leased now or kept since an earlier call; None: refused.

        What it holds is of no meaning.

        Args:
            size_bytes: how much is needed.
            hasty: wait for nobody, and take nothing that others may need more.
        """
        with self._lock:
            if not self.is_open:
                return None
            self._collect()
            # from here on the connection stays: the memory would go with it
            self._lent_count += 1
            timed = self._timed
            arena = self._take_idle(size_bytes)
            may_ask = not hasty or (
                self._lent_count + len(self._idle) <= HASTY_COUNT
                and time.monotonic() >= self._refused_s + REFUSED_S
            )
        try:
            if not timed:
                self._wake.set()
            if arena is None and may_ask:
                arena = self._lease(size_class(size_bytes), hasty=hasty)
            return arena
        finally:
            if arena is None:
                with self._lock:
                    self._lent_count -= 1
                self._wake.set()

    def take_back(self, arena: LeasedArena) -> None:
        """Take memory that nobody uses any more; callable from a finalizer."""
        if os.getpid() == self._process:  # in a forked child it is the parent's
            arena.idle_since_s = time.monotonic()
            self._returned.append(arena)
            # a small one the next call finds, or the listener in its time: waking that costs a
            # small call more than its copies
            if arena.spoilt or self._closed or arena.view.nbytes > IDLE_BYTES // 64:
                self._wake.set()

    def close(self) -> None:
        """End the connection as soon as nobody looks at its memory; callable from a finalizer."""
        if os.getpid() == self._process:
            self._closed = True
            self._wake.set()

    def _take_idle(self, size_bytes: int) -> LeasedArena | None:
        fits = [
            arena
            for arena in self._idle
            if size_bytes <= arena.view.nbytes <= max(2 * size_bytes, LEAST_BYTES)
        ]
        if not fits:
            return None
        # the latest used of the smallest: its pages are the warmest
        best = min(reversed(fits), key=lambda arena: arena.view.nbytes)
        self._idle.remove(best)
        return best

    def _lease(self, size_bytes: int, *, hasty: bool) -> LeasedArena | None:
        """Ask the server for memory; if it refuses, once more without what is kept here."""
        if not self._asking.acquire(timeout=0 if hasty else ANSWER_S):
            return None
        try:
            arena = self._ask(size_bytes)
            if arena is None and not hasty and self._release_idle(0):
                arena = self._ask(size_bytes)
            return arena
        except (OSError, ValueError, queue.Empty):
            # the server is gone, too slow, or none of ours
            self.is_sound = False
            self.close()
            return None
        except BaseException:
            # an interrupt: the answer may still come, and would be taken for another's
            self.close()
            raise
        finally:
            self._asking.release()

    def _ask(self, size_bytes: int) -> LeasedArena | None:
        self._socket.send(LeaseMessage(LeaseWord.LEASE, size_bytes=size_bytes).encode())
        answer = self._answers.get(timeout=ANSWER_S)
        if answer is None:
            raise ConnectionResetError("the server closed the connection")
        if answer[0].word is LeaseWord.REFUSED:
            self._refused_s = time.monotonic()
            return None
        message, fd = answer
        arena = LeasedArena(self.take_back, message.token, mapped(fd, message.size_bytes))
        if arena.view.nbytes < size_bytes:
            raise ValueError("the server leased less than was asked for")
        self.is_sound = True
        return arena

    def _listen(self) -> None:
        """Hear the server and take back what is returned, until nobody needs the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake.fd, select.POLLIN)
        while True:
            wait_s = self._trim()
            readable = dict(poll.poll(None if wait_s is None else wait_s * 1000 + 1))
            self._wake.clear()
            if self._socket.fileno() in readable and not self._hear():
                # what is mapped stays: views of results live on
                self._closed = True
                poll.unregister(self._socket)
                self._answers.put(None)
            with self._lock:
                self._collect()
                if self._closed and not self._lent_count:
                    break
        self._wake.close()
        # a forked child may hold the socket too: end it for all
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(queue.Empty):
            while True:  # answers that came too late
                late = self._answers.get_nowait()
                if late is not None and late[1] >= 0:
                    os.close(late[1])

    def _hear(self) -> bool:
        """Take in one message; return False if there will be no other."""
        try:
            data, fds, _, _ = socket.recv_fds(
                self._socket, MAX_MESSAGE_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return True
        except OSError:
            return False
        try:
            message = LeaseMessage.decode(data)
            if message.word is LeaseWord.RECALL:
                self._release_idle(0)
                return True
            is_grant = message.word is LeaseWord.LEASED
            if is_grant != bool(fds) or not (is_grant or message.word is LeaseWord.REFUSED):
                return False
            self._answers.put((message, fds.pop() if fds else -1))
        except (ValueError, RecursionError, OSError):
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _collect(self) -> None:
        """Put what was returned with what is idle, or end its lease."""
        while self._returned:
            arena = self._returned.popleft()
            self._lent_count -= 1
            if arena.spoilt or self._closed:
                self._release(arena)
            else:
                self._idle.append(arena)

    def _trim(self) -> float | None:
        """Release what is kept for too long, or is too much; return after how many seconds next."""
        self._release_idle(IDLE_BYTES)
        with self._lock:
            limit_s = time.monotonic() - IDLE_S
            while self._idle and self._idle[0].idle_since_s <= limit_s:
                self._release(self._idle.pop(0))
            waits_s = [self._idle[0].idle_since_s - limit_s] if self._idle else []
            if self._lent_count:
                waits_s.append(IDLE_S)
            self._timed = bool(waits_s)
            return min(waits_s, default=None)

    def _release_idle(self, keep_bytes: int) -> bool:
        """Release idle memory beyond so many bytes; return whether there was any."""
        released = False
        with self._lock:
            self._collect()
            while sum(arena.view.nbytes for arena in self._idle) > keep_bytes:
                self._release(self._idle.pop(0))
                released = True
        return released

    def _release(self, arena: LeasedArena) -> None:
        try:
            self._socket.send(LeaseMessage(LeaseWord.RELEASE, arena.token).encode())
        except OSError:
            # gone, or does not hear: with the end of the socket all its leases end
            self._closed = True


class _Wake:
    """What wakes the listening thread, from any thread and from finalizers."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.RLock()
        self._is_open = True

    def set(self) -> None:
        with self._lock:
            if self._is_open:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self.fd)
