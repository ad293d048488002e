"""A time limit that never swallows a cancel, and can be moved.

asyncio.wait_for does, before Python 3.12, when what it waits for ends in the moment of the cancel:
the handler of a client that has gone would stay, and its request would run.
"""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout

    def move(limit: Timeout, seconds: float) -> None:
        """Let a limit end in so many seconds from now, unless it has ended."""
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + seconds)

else:
    from async_timeout import Timeout, timeout

    def move(limit: Timeout, seconds: float) -> None:
        """Let a limit end in so many seconds from now, unless it has ended."""
        if not limit.expired:
            # one that is over at once would be raised here, and not where the limit is
            limit.update(asyncio.get_running_loop().time() + max(seconds, 0.001))


__all__ = ["Timeout", "move", "timeout"]
