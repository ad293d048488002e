"""Ctrl-C while cases run: noted at once, raised where it does no harm."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from opferry.cli._interrupts import Interrupts


def test_the_first_is_noted_and_stops_the_second_is_raised() -> None:
    """The first Ctrl-C calls *stop* in another thread and raises nothing by itself."""
    stopped = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(stopped.set) as interrupts:
        interrupts.check()
        assert not interrupts.asked
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(10)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_an_interrupt_nothing_stays() -> None:
    """The thread that waits for it ends with the block."""
    before = threading.active_count()
    calls: list[int] = []
    with Interrupts(lambda: calls.append(1)):
        assert threading.active_count() == before + 1
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread():
            thread.join(5)
            break
    assert threading.active_count() == before
    assert not calls
