"""The status page and its events: whoever looks is sent the server as it is, once a second."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from importlib.resources import files

from aiohttp import web

from opferry_server.seeing.admin import HEADERS, Handler
from opferry_server.seeing.history import History
from opferry_server.seeing.snapshot import Snapshots
from opferry_server.seeing.view import View
from opferry_server.timeouts import timeout

PERIOD_S = 1.0
"""How often the page is told."""

VIEWER_COUNT = 50
"""How many may look at a time."""

PATIENCE_S = 10.0
"""How long a viewer may take to read; then it is let go, and comes again by itself."""

PAGE = {
    "/": ("status.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
}
"""The files of the page, by path."""


class Live:
    """The page, and who looks at it."""

    def __init__(self, view: View, history: History, snapshots: Snapshots) -> None:
        """Show a server.

        Args:
            view: its parts.
            history: of its last seconds, whose clock this is.
            snapshots: makes what is shown.
        """
        self._view = view
        self._history = history
        self._snapshots = snapshots
        self._viewers = 0
        self._closed = False
        self._event = b""
        self._changed = asyncio.Condition()
        self._ticking = asyncio.ensure_future(self._tick())

    @property
    def handlers(self) -> dict[str, Handler]:
        """What answers, by path."""
        return {"/events": self._events, **dict.fromkeys(PAGE, self._page)}

    async def close(self) -> None:
        """Let all viewers go."""
        self._closed = True
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self._history.tick(sum(worker.running_count for worker in self._view.workers))
            if self._viewers:
                self._event = self._snapshot()
                async with self._changed:
                    self._changed.notify_all()

    def _snapshot(self) -> bytes:
        return b"data: %s\n\n" % json.dumps(self._snapshots.take(), separators=(",", ":")).encode()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= VIEWER_COUNT or self._closed:
            raise web.HTTPServiceUnavailable(text=f"{VIEWER_COUNT} look already\n", headers=HEADERS)
        reply = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await reply.prepare(request)
        self._viewers += 1
        event = self._snapshot()
        try:
            with suppress(ConnectionError, asyncio.TimeoutError):
                while not self._closed:
                    async with timeout(PATIENCE_S):
                        await reply.write(event)
                    async with self._changed:
                        await self._changed.wait()
                    event = self._event
        finally:
            self._viewers -= 1
        return reply

    async def _page(self, request: web.Request) -> web.Response:
        name, kind = PAGE[request.path]
        text = files(__package__).joinpath("page", name).read_text("utf-8")
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=HEADERS)
