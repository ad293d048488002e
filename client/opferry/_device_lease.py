"""Leases of devices: asking several servers at once, and taking the first that grants one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from opferry import errors
from opferry.client import Client
from opferry.config import ClientConfig
from opferry.core.farm import DeviceLease


class _Asking:
    """One server that is asked for a lease, by a thread, until it is told to let go."""

    def __init__(
        self,
        config: ClientConfig,
        device_kind: str,
        duration_s: float,
        answers: queue.SimpleQueue[tuple[_Asking, DeviceLease | Exception]],
    ) -> None:
        self.config = config
        self._client = Client(config)
        self._device_kind = device_kind
        self._duration_s = duration_s
        self._answers = answers
        self._let_go = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let go of the lease, or of the place in the line for it."""
        self._let_go.set()
        self._client.close()
        self._thread.join()

    def _ask(self) -> None:
        try:
            with self._client.lease_device(self._duration_s, self._device_kind) as lease:
                self._answers.put((self, lease))
                self._let_go.wait()
        except Exception as error:  # whatever it is: somebody waits for an answer
            self._answers.put((self, error))


@contextmanager
def first_granted(
    configs: Sequence[ClientConfig],
    device_kind: str,
    duration_s: float,
    say: Callable[[str], None],
) -> Iterator[tuple[ClientConfig, DeviceLease]]:
    """Ask servers for a device, and hold the first lease that is granted for a `with` block.

    Args:
        configs: the servers.
        device_kind: a system on chip, or a part of its name; "": any.
        duration_s: how long the lease is to last.
        say: told of servers that cannot grant one while others still may.

    Raises:
        OpFerryError: why none can, the last server's reason.
    """
    answers: queue.SimpleQueue[tuple[_Asking, DeviceLease | Exception]] = queue.SimpleQueue()
    asking = [_Asking(config, device_kind, duration_s, answers) for config in configs]
    try:
        chosen, lease = _first(asking, answers, say)
        for other in asking:
            if other is not chosen:
                other.end()
        yield chosen.config, lease
    finally:
        for each in asking:
            with suppress(errors.OpFerryError):
                each.end()


def _first(
    asking: Sequence[_Asking],
    answers: queue.SimpleQueue[tuple[_Asking, DeviceLease | Exception]],
    say: Callable[[str], None],
) -> tuple[_Asking, DeviceLease]:
    left = len(asking)
    while True:
        one, answer = answers.get()
        if isinstance(answer, DeviceLease):
            return one, answer
        left -= 1
        if not left:
            raise answer
        say(f"{one.config.target}: {answer}")
