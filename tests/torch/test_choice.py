"""Which server a call goes to: the block's, the process's, or the one that is found by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import opferry.torch
from opferry.errors import RequestError
from tests.torch.watching import WatchedClient

ONES = torch.ones(1, 2, 1, 8)


def call() -> None:
    opferry.torch.apply_rotary_pos_emb(ONES, ONES, ONES, ONES)


@pytest.fixture
def other(cpu_server: str) -> Iterator[WatchedClient]:
    """A second client."""
    with WatchedClient.connect(cpu_server) as client:
        yield client


@pytest.fixture
def _nothing_chosen() -> Iterator[None]:
    opferry.torch.use(None)
    yield
    opferry.torch.use(None)


def test_blocks_nest(watched: WatchedClient, other: WatchedClient) -> None:
    """The innermost block counts, and after an error the one around it again."""
    call()
    with opferry.torch.using(other) as given:
        assert given is other
        with opferry.torch.using(watched), pytest.raises(RequestError):
            opferry.torch.apply_rotary_pos_emb(ONES, ONES, ONES, ONES, layout="?")
        call()
        call()
    call()
    assert (len(watched.calls), len(other.calls)) == (2, 2)


def test_a_block_is_its_threads_alone(watched: WatchedClient, other: WatchedClient) -> None:
    """Another thread goes by what the process has chosen."""
    with opferry.torch.using(other):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert (len(watched.calls), len(other.calls)) == (1, 0)


def test_a_block_is_its_tasks_alone(watched: WatchedClient, other: WatchedClient) -> None:
    """Tasks that run by turns in one thread, as cells of a notebook do, keep their own servers."""

    async def task(client: WatchedClient, mine: asyncio.Event, next_one: asyncio.Event) -> None:
        with opferry.torch.using(client):
            for _ in range(3):
                await mine.wait()
                mine.clear()
                call()
                next_one.set()

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        first.set()
        await asyncio.gather(task(other, first, second), task(watched, second, first))
        await asyncio.to_thread(call)

    asyncio.run(main())
    assert (len(watched.calls), len(other.calls)) == (4, 3)


@pytest.mark.usefixtures("_nothing_chosen")
def test_without_a_server() -> None:
    """The error says what to do."""
    with pytest.raises(RequestError, match=r"opferry\.torch\.use\(\).*OPFERRY_TARGET"):
        call()


@pytest.mark.usefixtures("_nothing_chosen")
def test_the_server_that_connect_finds(cpu_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPFERRY_TARGET is enough; what was found stays until it is forgotten."""
    monkeypatch.setenv("OPFERRY_TARGET", cpu_server)
    call()
    monkeypatch.delenv("OPFERRY_TARGET")
    call()
    opferry.torch.use(None)
    with pytest.raises(RequestError):
        call()


@pytest.mark.usefixtures("_nothing_chosen")
def test_targets(cpu_server: str) -> None:
    """A target will do for a client."""
    opferry.torch.use(cpu_server)
    call()
    with opferry.torch.using(cpu_server):
        call()
    with pytest.raises(RequestError, match="target"):
        opferry.torch.use("nowhere")


def test_a_running_loop(watched: WatchedClient) -> None:
    """In a running event loop, as in a notebook, calls and their backward work."""

    async def cell() -> torch.Tensor:
        leaf = torch.ones(1, 2, 1, 8, requires_grad=True)
        query, _ = opferry.torch.apply_rotary_pos_emb(leaf, ONES, ONES, ONES)
        query.sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    assert asyncio.run(cell()).tolist() == [[[[2.0] * 4 + [0.0] * 4]] * 2]


def test_what_is_computed_once_more_asks_again(
    watched: WatchedClient, other: WatchedClient
) -> None:
    """A checkpoint runs its forward again in backward, on the server that is chosen then.

    The backward operator itself stays with the server of the first time.
    """
    leaf = torch.ones(1, 2, 1, 8, requires_grad=True)

    def part(query: torch.Tensor) -> torch.Tensor:
        return opferry.torch.apply_rotary_pos_emb(query, ONES, ONES, ONES)[0]

    with opferry.torch.using(other):
        found = checkpoint(part, leaf, use_reentrant=False)
    found.sum().backward()
    names = [[name for name, _ in client.names] for client in (other, watched)]
    assert names == [["ApplyRotaryPosEmb", "ApplyRotaryPosEmbGrad"], ["ApplyRotaryPosEmb"]]
    assert leaf.grad is not None


def test_many_threads(watched: WatchedClient) -> None:
    """Threads share the client of the process, forward and backward."""

    def differentiate(seed: int) -> bool:
        leaf = torch.full((1, 2, 1, 8), float(seed), requires_grad=True)
        query, _ = opferry.torch.apply_rotary_pos_emb(leaf, ONES, ONES, ONES)
        query.square().sum().backward()
        assert leaf.grad is not None
        # of the first half 0, of the second twice the value: cos - sin and cos + sin
        return bool((query[..., 4:] == 2 * seed).all() and (leaf.grad == 4 * seed).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(differentiate, range(64)))


@pytest.mark.parametrize("server", [5, b"host:1", object()])
def test_what_is_no_server_is_refused_at_once(server: object) -> None:
    """Neither a client nor a target: what was given, and what is allowed."""
    with pytest.raises(RequestError, match="server is a") as caught:
        opferry.torch.use(server)  # type: ignore[arg-type]
    assert caught.value.argument == "server"
    with pytest.raises(RequestError, match="server is a"), opferry.torch.using(server):  # type: ignore[arg-type]
        pass


def test_an_asynchronous_client_is_no_server_here(cpu_server: str) -> None:
    """Its methods return coroutines, which torch could not wait for."""

    async def choose() -> None:
        async with opferry.aio.connect(cpu_server) as client:
            opferry.torch.use(client)  # type: ignore[arg-type]

    with pytest.raises(RequestError, match=r"server is a opferry\.aio"):
        asyncio.run(choose())
