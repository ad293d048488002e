"""Which server the operators of torch run on.

What a block chooses counts in its own thread and asyncio task, before what the process has chosen;
without either it is the server that `opferry.connect()` finds by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import opferry
from opferry._connect import find_place
from opferry.client import Client
from opferry.envconfig import TARGET_VARIABLE
from opferry.errors import RequestError

_of_block: ContextVar[Client | None] = ContextVar("opferry_torch_server", default=None)
_of_process: Client | None = None


def use(server: Client | str | None) -> None:
    """Choose the server of all calls that are in no block of `using`, in all threads.

    Args:
        server: a client, or what `opferry.connect` takes as target; None: forget what was chosen,
            or found without a choice.

    Raises:
        RequestError: as `opferry.connect`.
    """
    global _of_process
    _of_process = None if server is None else _client_of(server)


@contextmanager
def using(server: Client | str) -> Iterator[Client]:
    """Choose the server of the calls in a `with` block, in its own thread and asyncio task.

    Blocks may be nested. What a call in a block has computed is differentiated on the same server,
    wherever `backward` is called, and in whatever thread torch runs it.

    Args:
        server: a client, or what `opferry.connect` takes as target. A client that is made here
            lives as long as the block, or a graph that needs it.

    Yields:
        The client.

    Raises:
        RequestError: as `opferry.connect`.
    """
    client = _client_of(server)
    token = _of_block.set(client)
    try:
        yield client
    finally:
        _of_block.reset(token)


def _client_of(server: object) -> Client:
    if isinstance(server, str):
        return opferry.connect(server)
    if not isinstance(server, Client):
        allowed = "an opferry.Client, or what opferry.connect takes as target"
        kind = f"{type(server).__module__}.{type(server).__qualname__}"
        raise RequestError(
            f"server is a {kind}; give {allowed}", argument="server", given=kind, allowed=allowed
        )
    return server


def chosen() -> Client | None:
    """Return the client of the block, else of the process, else None."""
    return _of_block.get() or _of_process


def current() -> Client:
    """Return the client that a call is to use; found by itself, it is the process's from then on.

    Raises:
        RequestError: if none was chosen, and `opferry.connect()` would not find one.
    """
    client = chosen()
    if client is None:
        if find_place(None, None) is None:
            raise RequestError(
                "no server: call opferry.torch.use() with a client or host:port, or set "
                f"{TARGET_VARIABLE} or a context",
                argument="target",
            )
        client = opferry.connect()
        use(client)
    return client
