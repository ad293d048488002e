"""The admin port: what programs and people see of a server, by HTTP.

It has no credentials. It changes nothing, and tells no more than a colleague may know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from opferry.core.addresses import is_loopback

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""How a browser on this host names it; another name is another site's, which would look in."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What every reply says: nothing of the page comes from elsewhere, and nobody frames it."""

END_S = 0.5
"""How long replies that are on their way get at the end."""


class Admin:
    """The admin port of a server."""

    def __init__(
        self,
        registry: CollectorRegistry,
        serving: Callable[[], bool],
        handlers: Mapping[str, Handler],
    ) -> None:
        """Serve nothing yet; see `open`.

        Args:
            registry: the metrics.
            serving: whether the server takes calls.
            handlers: of other paths.
        """
        self._registry = registry
        self._serving = serving
        self._handlers = handlers
        self._runner: web.AppRunner | None = None
        self._local = True

    async def open(self, address: str) -> str:
        """Listen on "host:port" and return the same; port 0 takes a free one.

        Raises:
            OSError: if the address cannot be had.
        """
        self._local = is_loopback(address)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        for path, handler in self._handlers.items():
            app.router.add_get(path, handler)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=END_S
        )
        await self._runner.setup()
        host, _, port = address.rpartition(":")
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), reuse_port=False)
        await site.start()
        taken = self._runner.addresses[0][1]
        return f"{host}:{taken}"

    async def close(self) -> None:
        """Stop listening, and end what is on its way."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.host
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._local and name not in LOCAL_NAMES:
            raise web.HTTPForbidden(text=f"this is {' or '.join(LOCAL_NAMES)}\n")
        return await handler(request)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={**HEADERS, "Content-Type": kind})

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n", headers=HEADERS)

    async def _ready(self, _: web.Request) -> web.Response:
        if self._serving():
            return web.Response(text="serving\n", headers=HEADERS)
        return web.Response(text="not serving\n", status=503, headers=HEADERS)
