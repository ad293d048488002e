"""A time limit that never swallows a cancel.

asyncio.wait_for does, before Python 3.12, when what it waits for ends in the moment of the cancel:
the handler of a client that has gone would stay, and its request would run.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

__all__ = ["timeout"]
