"""The fair line in simulated time: shares by weight, no saving up, single calls before batches."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opferry.core.execution import Priority
from opferry_server.fair_line import FairLine

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH

HEAD_START = 2.0

_clock = count()


@dataclass(eq=False)
class Request:
    """What stands in the line."""

    tenant: str
    priority: Priority = BATCH
    cost: float = 0.05
    entered_s: float = 0.0

    def __post_init__(self) -> None:
        self.entered_s = next(_clock)

    @property
    def account(self) -> str:
        return self.tenant


def fair_line(**weights: float) -> FairLine[Request]:
    return FairLine(
        lambda request: request.cost, lambda request: weights.get(request.tenant, 1.0), HEAD_START
    )


def serve(line: FairLine[Request]) -> Request:
    """Serve the next request of a line as a single device would."""
    request = next(iter(line))
    line.take(request)
    line.settle(request, request.cost)
    return request


def flood(line: FairLine[Request], tenant: str, number: int, priority: Priority = BATCH) -> None:
    for _ in range(number):
        line.append(Request(tenant, priority))


def test_always_backlogged_tenants_share_by_weight() -> None:
    line = fair_line(one=1, two=2, four=4)
    for tenant in ("one", "two", "four"):
        flood(line, tenant, 700)
    served = Counter(serve(line).tenant for _ in range(700))
    assert served == {"one": 100, "two": 200, "four": 400}


def test_costs_count_not_requests() -> None:
    """Who has long requests gets fewer of them: the seconds are shared."""
    line = fair_line()
    for _ in range(300):
        line.append(Request("long", cost=0.3))
        line.append(Request("short", cost=0.1))
    seconds: Counter[str] = Counter()
    for _ in range(300):
        request = serve(line)
        seconds[request.tenant] += round(request.cost * 10)
    assert abs(seconds["long"] - seconds["short"]) <= 3


def test_a_wrong_guess_is_put_right() -> None:
    """A tenant whose requests cost three times what was expected gets a third as many."""
    line = fair_line()
    flood(line, "liar", 400)
    flood(line, "honest", 400)
    served: Counter[str] = Counter()
    for _ in range(400):
        request = next(iter(line))
        line.take(request)
        line.settle(request, request.cost * (3 if request.tenant == "liar" else 1))
        served[request.tenant] += 1
    assert served == {"liar": 100, "honest": 300}


def test_who_was_away_has_saved_nothing_and_waits_for_nobody() -> None:
    line = fair_line()
    flood(line, "steady", 1000)
    for _ in range(500):
        serve(line)
    flood(line, "newcomer", 100)
    assert [serve(line).tenant for _ in range(8)].count("newcomer") == 4


def test_who_was_alone_pays_nothing_for_it() -> None:
    """What nobody else wanted is not held against who had it, even once all were away."""
    line = fair_line()
    flood(line, "a", 500)
    for _ in range(500):
        serve(line)
    flood(line, "b", 100)
    serve(line)
    flood(line, "a", 100)
    assert [serve(line).tenant for _ in range(8)].count("a") == 4


@pytest.mark.parametrize("cost", [1.0, 0.0])
def test_who_never_waits_saves_nothing_up(cost: float) -> None:
    """B's runs overlap and are taken at once; beside A it is then no more than A's equal."""
    line = fair_line()
    flood(line, "a", 2000)
    running: list[Request] = []
    for _ in range(500):
        request = Request("b", cost=cost)
        line.append(request)
        line.take(request)
        running.append(request)
        if len(running) > 2:
            done = running.pop(0)
            line.settle(done, done.cost)
        serve(line)
        serve(line)
    flood(line, "b", 100)
    assert [serve(line).tenant for _ in range(60)].count("b") <= 32


def test_a_single_call_passes_every_batch() -> None:
    line = fair_line(heavy=4)
    flood(line, "heavy", 500)
    flood(line, "own", 500)
    for _ in range(30):
        line.append(Request("own", INTERACTIVE))
        assert serve(line).priority is INTERACTIVE
        serve(line)
        serve(line)
        serve(line)


def test_a_flood_of_single_calls_leaves_batches_their_share() -> None:
    line = fair_line()
    flood(line, "impatient", 1000, INTERACTIVE)
    flood(line, "patient", 1000, BATCH)
    flood(line, "both", 500, INTERACTIVE)
    flood(line, "both", 500, BATCH)
    served = [serve(line) for _ in range(900)]
    per_tenant = Counter(request.tenant for request in served)
    assert all(abs(number - 300) <= HEAD_START / 0.05 for number in per_tenant.values())
    own = Counter(request.priority for request in served if request.tenant == "both")
    assert own[BATCH] >= 150 - HEAD_START / 0.05


@given(st.data())
def test_nothing_is_lost_or_served_twice(data: st.DataObject) -> None:
    """Whatever is appended, taken, put back, settled and discarded, in any order."""
    line = fair_line(a=1, b=2.5)
    waiting: list[Request] = []
    taken: list[Request] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["append", "take", "put_back", "settle", "discard"]))
        if action == "append":
            request = Request(
                data.draw(st.sampled_from("abc")),
                data.draw(st.sampled_from(Priority)),
                data.draw(st.floats(0, 10)),
            )
            line.append(request)
            waiting.append(request)
        elif action in ("take", "discard") and waiting:
            request = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if action == "take":
                line.take(request)
                taken.append(request)
            else:
                assert line.discard(request)
                assert not line.discard(request)
        elif action in ("put_back", "settle") and taken:
            request = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            if action == "put_back":
                line.put_back(request)
                waiting.append(request)
            else:
                line.settle(request, data.draw(st.floats(0, 100)))
        assert len(line) == len(waiting)
        assert {id(request) for request in line} == {id(request) for request in waiting}
        assert len(list(line)) == len(waiting)


def test_a_tenants_requests_of_a_class_keep_their_order() -> None:
    line = fair_line(a=3)
    chance = random.Random(5)
    for _ in range(300):
        line.append(Request(chance.choice("abc"), chance.choice(list(Priority))))
    served = [serve(line) for _ in range(300)]
    for tenant in "abc":
        for priority in Priority:
            times = [
                request.entered_s
                for request in served
                if (request.tenant, request.priority) == (tenant, priority)
            ]
            assert times == sorted(times)
