"""The places in which cases are worked on: never too many, in turn, and none lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from opferry_server.places import Places


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30))


def test_streams_take_turns() -> None:
    """One case of a stream waits for one of another, not for all that the other has sent."""

    async def scene() -> None:
        places, order = Places(1), []
        await places.acquire("first")

        async def case(owner: str) -> None:
            await places.acquire(owner)
            order.append(owner)
            places.release()

        waiting = [asyncio.ensure_future(case("many")) for _ in range(5)]
        waiting.append(asyncio.ensure_future(case("one")))
        await asyncio.sleep(0)
        places.release()
        await asyncio.gather(*waiting)
        assert order == ["many", "one", "many", "many", "many", "many"]

    run(scene())


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30),
)
def test_places_are_neither_lost_nor_made(count: int, cases: list[tuple[int, int, bool]]) -> None:
    """Whoever gives up while waiting, or at any later moment, at most *count* work at a time."""

    async def scene() -> None:
        places, working = Places(count), 0

        async def case(owner: int, steps: int) -> None:
            nonlocal working
            await places.acquire(owner)
            working += 1
            try:
                assert working <= count
                for _ in range(steps):
                    await asyncio.sleep(0)
            finally:
                working -= 1
                places.release()

        tasks = []
        for owner, steps, gives_up in cases:
            tasks.append(asyncio.ensure_future(case(owner, steps)))
            await asyncio.sleep(0)
            if gives_up:
                tasks[len(tasks) // 2].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for owner in range(count):  # all are free again
            await asyncio.wait_for(places.acquire(owner), 1)

    run(scene())
