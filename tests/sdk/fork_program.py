"""Forks a process that uses the SDK; each case prints what its child found, and the parent after.

Run by test_forks.py as a program: a fork of pytest's own process would take its threads along.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

if "foreign" in sys.argv:
    import grpc  # noqa: F401 - before opferry, as some programs do

import opferry
from opferry.embedded import EmbeddedServer
from tests.support.servers import embedded

CHILD_S = 20
SMALL, LARGE = (np.ones((2, 64, heads, 128), np.float32) for heads in (4, 64))
COS = np.ones((1, 64, 1, 128), np.float32)


def call(client: opferry.Client) -> None:
    """Make a call that is small, one by shared memory, and one that is a stream."""
    for gradient, told in ((SMALL, None), (LARGE, None), (LARGE, lambda progress: None)):
        dq, _, _, _ = client.apply_rotary_pos_emb_grad(
            gradient, gradient, COS, COS, on_progress=told
        )
        assert dq[0, 0, 0, 0] == 2


async def call_asynchronously(address: str) -> None:
    async with opferry.aio.connect(address) as client:
        await client.apply_rotary_pos_emb_grad(SMALL, SMALL, COS, COS)


def in_child(act: Callable[[], object]) -> str:
    """Fork, act in the child, and return "ok" or the error there; a hung child is ended."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            act()
            said = "ok"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    return said or f"ended by {status}"


def idle(server: EmbeddedServer, client: opferry.Client) -> None:
    call(client)
    print(in_child(lambda: call(client)))
    print(in_child(lambda: call(opferry.connect(server.address))))
    print(in_child(lambda: asyncio.run(call_asynchronously(server.address))))


def threads(server: EmbeddedServer, client: opferry.Client) -> None:
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            call(client)

    others = [threading.Thread(target=go_on) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(5):
        print(in_child(lambda: call(client)))
    over.set()
    for other in others:
        other.join()


def together(server: EmbeddedServer, client: opferry.Client) -> None:
    """Threads fork at a time while others call, and open and close clients."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            call(client)

    def come_and_go() -> None:
        while not over.is_set():
            with opferry.connect(server.address) as another:
                another.server_info()

    others = [threading.Thread(target=act) for act in (go_on, go_on, come_and_go)]
    for other in others:
        other.start()
    said: list[str] = []
    forkers = [
        threading.Thread(
            target=lambda: said.extend(in_child(client.server_info) for _ in range(25))
        )
        for _ in range(3)
    ]
    for forker in forkers:
        forker.start()
    for forker in forkers:
        forker.join()
    over.set()
    for other in others:
        other.join()
    print(*said, sep="\n")


def unclosed(server: EmbeddedServer, client: opferry.Client) -> None:
    """Clients that nobody closes, each with a connection of its own."""

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def forgotten(number: int) -> None:
        keepalive = opferry.KeepaliveConfig(period_s=100.0 + number)
        opferry.connect(server.address, keepalive=keepalive).server_info()

    forgotten(0)
    before = open_files()
    for number in range(1, 21):
        forgotten(number)
        gc.collect()
    end_s = time.monotonic() + 30
    while open_files() > before + 2 and time.monotonic() < end_s:
        time.sleep(0.1)
    print(open_files() - before)


def amid(server: EmbeddedServer, client: opferry.Client) -> None:
    names = ("grad_query_embed", "grad_key_embed", "cos", "sin")
    calls = [dict.fromkeys(names, np.ones((1, 1, 1, 64), np.float32))] * 500
    outcomes = client.execute_many("apply_rotary_pos_emb_grad", calls)
    next(outcomes).result()
    print(in_child(lambda: call(client)))
    print(in_child(lambda: call(opferry.connect(server.address))))
    assert len([outcome.result() for outcome in outcomes]) == len(calls) - 1


def asynchronous(server: EmbeddedServer, client: opferry.Client) -> None:
    async def main() -> None:
        async with opferry.aio.connect(server.address) as ours:
            await ours.apply_rotary_pos_emb_grad(SMALL, SMALL, COS, COS)

            def theirs() -> None:
                coroutine = ours.apply_rotary_pos_emb_grad(SMALL, SMALL, COS, COS)
                coroutine.send(None)

            print(in_child(theirs))
            await ours.apply_rotary_pos_emb_grad(SMALL, SMALL, COS, COS)

    asyncio.run(main())


def stop(server: EmbeddedServer, client: opferry.Client) -> None:
    print(in_child(server.stop))


def foreign(server: EmbeddedServer, client: opferry.Client) -> None:
    print(in_child(lambda: call(client)))
    print(in_child(lambda: call(opferry.connect(server.address))))
    print(in_child(client.close))


CASES = {
    case.__name__: case
    for case in (idle, threads, together, unclosed, amid, asynchronous, stop, foreign)
}

if __name__ == "__main__":
    with embedded() as shared, opferry.connect(shared.address, timeout=60) as connected:
        CASES[sys.argv[1]](shared, connected)
        call(connected)
        print("parent ok")
