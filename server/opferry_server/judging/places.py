"""The places in which cases are worked on: few, and given out in turn among the streams."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Places:
    """A number of places, for one event loop.

    Each stream that waits gets one after the other, whatever number of cases it has waiting: one
    case is not kept from its verdict by somebody else's ten thousand.
    """

    def __init__(self, count: int) -> None:
        """Have *count* places, all free."""
        self._free = count
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: object) -> None:
        """Wait for a place.

        Args:
            owner: whose turn it is then; owners take turns.
        """
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was given in the moment of the cancel
            raise

    def release(self) -> None:
        """Give a place back."""
        self._free += 1
        while self._free and self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # at the end: the others come first
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
