"""Ctrl-C while cases run: noted at once, raised where it does no harm."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from opferry.cli._interrupts import noting_interrupts


def test_the_first_is_noted_and_stops_the_second_is_raised() -> None:
    """The first Ctrl-C calls *stop* in another thread and raises nothing by itself."""
    stopped = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    with noting_interrupts(stopped.set) as interrupts:
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
    calls: list[int] = []
    with noting_interrupts(lambda: calls.append(1)):
        (waiting,) = (item for item in threading.enumerate() if item.name == "opferry-interrupts")
    waiting.join(10)
    assert not waiting.is_alive()
    assert not calls
