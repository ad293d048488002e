"""Ctrl-C while cases run."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """Notes Ctrl-C and stops what is waited for, for the length of a `with` block.

    An exception in the middle of anything would end in a lock that is not held, in half a line, or
    in a callback that swallows it; so the first Ctrl-C raises nothing. The second one does.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        """Stop by *stop*, which is called in another thread, once."""
        self.asked = False
        """Whether the user wants an end."""
        self._stop = stop
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def __enter__(self) -> Interrupts:
        threading.Thread(target=self._wait, daemon=True).start()
        self._previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)
        self._wakes.put(False)

    def check(self) -> None:
        """Raise what Ctrl-C would have raised.

        Raises:
            KeyboardInterrupt: if the user wants an end.
        """
        if self.asked:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.default_int_handler(number, frame)
        self.asked = True
        self._wakes.put(True)  # the one way to wake a thread that a signal handler may use

    def _wait(self) -> None:
        if self._wakes.get():
            self._stop()
