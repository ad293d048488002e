"""Ctrl-C while cases run."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether the user has pressed Ctrl-C."""

    def __init__(self) -> None:
        self.asked = False
        """Whether the user wants an end."""

    def check(self) -> None:
        """Raise what Ctrl-C would have raised.

        Raises:
            KeyboardInterrupt: if the user wants an end.
        """
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def noting_interrupts(stop: Callable[[], None]) -> Iterator[Interrupts]:
    """Note Ctrl-C and stop what is waited for, for the length of a `with` block.

    An exception in the middle of anything would end in a lock that is not held, in half a line, or
    in a callback that swallows it; so the first Ctrl-C raises nothing. The second one does.

    Args:
        stop: ends what is waited for; called in another thread, once.
    """
    interrupts = Interrupts()
    wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def wait() -> None:
        if wakes.get():
            stop()

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if interrupts.asked:
            signal.default_int_handler(number, frame)
        interrupts.asked = True
        wakes.put(True)  # the one way to wake a thread that a signal handler may use

    threading.Thread(target=wait, name="opferry-interrupts", daemon=True).start()
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        wakes.put(False)
