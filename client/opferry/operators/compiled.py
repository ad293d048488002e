"""What compiled kernels share: how they are compiled and kept, and the threads that run them.

Needs numba, which the extra "server" brings; nothing imports this but what is about to compile.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numba import njit

_F = Callable[..., Any]


def compiled(*signatures: Any) -> Callable[[_F], _F]:
    """Compile a function for the given signatures; what runs in it holds no lock of Python's.

    The machine code is kept in NUMBA_CACHE_DIR, or beside the source, or in the user's cache, for
    the next process of the same processor; where none of them can be used, in memory. No
    arithmetic is reordered or fused.
    """

    def decorate(function: _F) -> _F:
        try:
            return njit(list(signatures), nogil=True, cache=True)(function)
        except Exception:
            # no folder to write to, a full disk, a file cut short; a true error comes again
            return njit(list(signatures), nogil=True)(function)

    return decorate


class Threads:
    """Threads that take pieces of a range in turn; made when they are first needed."""

    def __init__(self, count: int) -> None:
        """Have *count* threads, the caller's included."""
        self.count = max(1, count)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, kernel: Callable[[int, int], None], length: int, piece: int) -> None:
        """Call ``kernel(first, last)`` for pieces that together are ``range(length)``.

        Args:
            kernel: what to do with a piece; it must not matter who does which.
            length: how much there is.
            piece: how much of it one call gets; the last may get less.
        """
        pieces = -(-length // piece)
        if self.count == 1 or pieces <= 1:
            kernel(0, length)
            return
        turn = itertools.count()  # next() of it is one step of the interpreter

        def work() -> None:
            while (number := next(turn)) < pieces:
                kernel(number * piece, min(length, (number + 1) * piece))

        helpers = min(self.count, pieces) - 1
        done = [self._executor().submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            for helper in done:
                helper.result()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.count - 1, thread_name_prefix="kernel")
            return self._pool


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
