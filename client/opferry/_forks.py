"""gRPC, loaded so that it outlives forks of this process, and whether it has.

In a forked child gRPC has none of its threads. It makes them again only if it was told so before it
was loaded, and if no call was under way when the process was forked: so a fork waits a moment for
those of other threads, and new ones wait for the fork. Otherwise a call in the child would wait for
ever, and might spoil the connection that its parent still uses; so it is refused.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from opferry.core.problems import StatusCode
from opferry.errors import TransportError

VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
"""gRPC's own variable, which it reads when it is loaded."""

_tells = "grpc" not in sys.modules and VARIABLE not in os.environ
if _tells:
    os.environ[VARIABLE] = "1"
IS_TOLD = os.environ[VARIABLE].lower() in ("1", "true", "yes") if VARIABLE in os.environ else False
"""Whether gRPC makes its threads again in a forked child."""
try:
    import grpc
finally:
    if _tells:  # what this process starts may want it otherwise
        del os.environ[VARIABLE]

CALLS_END_S = 2.0
"""How long a fork waits for the calls of other threads to end."""

__all__ = ["IS_TOLD", "CallUnderWay", "check", "close_channel", "grpc", "make_channel"]

_T = TypeVar("_T")


class _State:
    """What is known of gRPC in this process; changed by handlers, which run around a fork."""

    def __init__(self) -> None:
        self.has_channels = False
        # no thread can interrupt a step on it, so it needs no lock, which a fork might find taken
        self.calls: set[CallUnderWay] = set()
        self.no_fork = threading.Event()
        self.no_fork.set()
        # from before a fork until after it: two at a time would let calls begin amid the other
        self.forking = threading.RLock()
        self.forker = 0
        self.forked_amid_calls = False
        self.lost = ""

    def before_fork(self) -> None:
        """Let no call begin, and wait for those of other threads to end."""
        self.forking.acquire()
        self.forker = mine = threading.get_ident()
        self.no_fork.clear()
        end_s = time.monotonic() + CALLS_END_S
        while time.monotonic() < end_s and any(call.thread != mine for call in tuple(self.calls)):
            time.sleep(0.001)
        self.forked_amid_calls = bool(self.calls)

    def in_parent(self) -> None:
        self.forker = 0
        self.no_fork.set()
        self.forking.release()

    def in_child(self) -> None:
        self.forker = 0
        self.forking = threading.RLock()
        self.no_fork = threading.Event()
        self.no_fork.set()
        if self.has_channels and not IS_TOLD:
            self.lost = (
                "this process was forked after its parent had used gRPC, which was loaded without "
                f"{VARIABLE}=1: set it, or import opferry.client before grpc, or start processes "
                "by spawn"
            )
        elif self.forked_amid_calls:
            self.lost = (
                "this process was forked while its parent had calls under way, which gRPC does not "
                "outlive: fork while there are none, or start processes by spawn"
            )
        self.calls.clear()


_state = _State()


def check() -> None:
    """Check that gRPC can be used in this process.

    Raises:
        TransportError: if it did not outlive the fork that made the process.
    """
    if _state.lost:
        raise TransportError(_state.lost, status=StatusCode.FAILED_PRECONDITION)


def make_channel(make: Callable[[], _T]) -> _T:
    """Return the channel that *make* makes, while nobody forks: its locks must not be taken then.

    Raises:
        TransportError: as `check`.
    """
    with CallUnderWay():
        channel = make()
    _note_channel()
    return channel


def close_channel(channel: Any, process: int) -> None:
    """Close a channel that a process has made, if it is this one, while nobody forks."""
    if os.getpid() == process:
        with CallUnderWay():
            channel.close()


def _note_channel() -> None:
    if _state.has_channels:
        return
    _state.has_channels = True
    if hasattr(os, "register_at_fork"):
        # gRPC has registered its own handler with the channel. The last one runs first: while gRPC
        # prepares a fork no call would come to an end.
        os.register_at_fork(
            before=_state.before_fork,
            after_in_parent=_state.in_parent,
            after_in_child=_state.in_child,
        )


class CallUnderWay:
    """A call, for the length of a `with` block; entering it checks as `check`.

    While another thread forks it waits, unless its thread has a call under way already, which that
    fork waits for.
    """

    def __enter__(self) -> None:
        check()
        self.thread = threading.get_ident()
        """The thread that began it."""
        # what is collected while this thread prepares a fork closes its channel before it
        nested = self.thread == _state.forker or any(
            call.thread == self.thread for call in tuple(_state.calls)
        )
        # first here, then a look at the fork, which does the same the other way round: so one of
        # the two sees the other
        _state.calls.add(self)
        while not nested and not _state.no_fork.is_set():
            _state.calls.discard(self)
            _state.no_fork.wait()
            _state.calls.add(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # not there in a child that was forked amid the block
        _state.calls.discard(self)
