"""Envoy with the configuration that we ship, in front of three servers that come and go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.results import ApplyRotaryPosEmbGradResult
from opferry.validation import CaseStatus
from tests.farm.running import Farm
from tests.support.calls import assert_same_bits, reference, tnd

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

REQUESTS = 2000
CLIENTS = 5
TURNS = 3
FAULTS = 100
OPERATOR, TND = "ApplyRotaryPosEmbGrad", {"layout": 4}
NEVER_AGAIN = opferry.RetryConfig(attempts=1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Farm]]:
    """Starts farms that end with the test."""
    farms: list[Farm] = []

    def started(**options: Any) -> Farm:
        farms.append(Farm(tmp_path / f"farm-{len(farms)}", **options))
        return farms[-1]

    (tmp_path / "farm-0").mkdir()
    yield started
    for farm in farms:
        farm.close()


class Client:
    """A client that makes requests of all kinds, and checks what comes of them."""

    def __init__(self, farm: Farm, seed: int, made: Counter[str]) -> None:
        self._random = np.random.default_rng(seed)
        self._client = farm.client(seed, timeout=120)
        self._made = made

    def make(self, least: int, over: threading.Event) -> None:
        """Make requests, one after the other: so many, and on until it is *over*."""
        done = 0
        kinds = (self._small,) * 20 + (self._large,) * 12 + (self._plan, self._many) * 4
        with self._client:
            while done < least or not over.is_set():
                kind = (*kinds, self._validate)[int(self._random.integers(len(kinds) + 1))]
                count = kind()
                self._made[kind.__name__] += count
                done += count

    def _arguments(self, tokens: int, width: int) -> dict[str, Any]:
        # the first element of cos is how long the backend sleeps before it computes
        return tnd(
            tokens,
            int(self._random.integers(1, 5)),
            int(self._random.integers(1, 5)),
            width,
            cos=float(self._random.choice([0.0, 0.05, 0.2])),
            with_query=bool(self._random.integers(2)),
            seed=int(self._random.integers(2**31)),
        )

    def _small(self) -> int:
        arguments = self._arguments(int(self._random.integers(1, 60)), 8)
        result = self._client.apply_rotary_pos_emb_grad(**arguments)
        assert_same_bits(result, reference(arguments))
        return 1

    def _large(self) -> int:
        arguments = self._arguments(int(self._random.integers(600, 6000)), 64)
        result = self._client.apply_rotary_pos_emb_grad(**arguments, checksum=True)
        assert_same_bits(result, reference(arguments))
        return 1

    def _plan(self) -> int:
        plan = self._client.plan_apply_rotary_pos_emb_grad(**self._arguments(7, 8))
        assert plan.outputs
        return 1

    def _many(self) -> int:
        calls = [self._arguments(int(self._random.integers(1, 60)), 8) for _ in range(10)]
        inputs = [{name: call[name] for name in call if name != "layout"} for call in calls]
        for outcome in self._client.execute_many(OPERATOR, inputs, attributes=TND):
            assert outcome.error is None, outcome.error
            value = ApplyRotaryPosEmbGradResult.of(outcome.value)
            assert_same_bits(value, reference(calls[outcome.position]))
        return len(calls)

    def _validate(self) -> int:
        arguments = self._arguments(20, 8)
        del arguments["layout"]
        judged = self._client.validate(OPERATOR, arguments, attributes=TND)
        assert judged.status is CaseStatus.PASS, judged.reason
        return 1


def come_and_go(farm: Farm) -> int:
    """Kill, add, drain and remove servers; return how many requests the killed ones had."""
    killed = farm.busy()
    hit = farm.active()[killed.address]
    farm.kill(killed)
    farm.start_again(killed)
    added = farm.add()
    drained = farm.busy()
    farm.drain(drained)
    farm.start_again(drained)
    farm.remove(farm.servers[-1] if drained is added else added)
    return hit


def test_servers_come_and_go_and_no_request_is_lost(start: Callable[..., Farm]) -> None:
    """2,000 requests of 5 clients, while servers are killed, drained and added in turn."""
    farm = start(count=3, tls=True, backend="SleepBackend")
    made: Counter[str] = Counter()
    over = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [Client(farm, seed, made) for seed in range(CLIENTS)]
        calls = [pool.submit(client.make, REQUESTS // CLIENTS, over) for client in clients]
        try:
            hit = sum(come_and_go(farm) for _ in range(TURNS))
        finally:
            over.set()
        for call in calls:
            call.result()
    assert sum(made.values()) >= REQUESTS, made
    assert set(made) == {"_small", "_large", "_plan", "_many", "_validate"}
    assert hit > 0, "no request was under way at a server that was killed"


class Fault:
    """What a caller is told, over and over."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self.told: Counter[str | None] = Counter()

    def provoke(self, arguments: dict[str, Any]) -> None:
        """Make a call that is to fail, as a client that tries nothing again."""
        with self._farm.client(timeout=120, retry=NEVER_AGAIN) as client:
            try:
                client.apply_rotary_pos_emb_grad(**arguments)
            except errors.OpFerryError as error:
                self.told[error.reason] += 1
            else:
                self.told["OK"] += 1


def test_bad_kernels_and_full_queues_eject_nobody(start: Callable[..., Farm]) -> None:
    """100 DEVICE_FAULT and 100 SERVER_BUSY, unary and in streams: all servers are still used."""
    farm = start(count=3, tls=True, backend="CrashOrSleepBackend", limits={"queue_count": 1})
    faults = Fault(farm)
    # no more at a time than have room on one server, if Envoy chooses it for all of them
    with ThreadPoolExecutor(2) as pool:
        # other bytes each time: the same ones would be refused the third time
        crashes = [
            tnd(3000 if index % 5 == 0 else 2, width=64, cos=-9.0, seed=index)
            for index in range(FAULTS)
        ]
        list(pool.map(faults.provoke, crashes))
    assert faults.told == {"DEVICE_FAULT": FAULTS}

    busy = Fault(farm)
    with ThreadPoolExecutor(40) as pool:
        while busy.told["SERVER_BUSY"] < FAULTS:
            waits = [tnd(3000 if index % 5 == 0 else 2, width=64, cos=0.5) for index in range(40)]
            list(pool.map(busy.provoke, waits))
    assert set(busy.told) == {"SERVER_BUSY", "OK"}, busy.told

    assert farm.all_healthy()
    stats = farm.envoy.stats()
    assert {
        name: stats[name] for name in stats if "ejections_enforced" in name and stats[name]
    } == {}
    assert stats["membership_healthy"] == 3
    # Envoy has seen the statuses, and would have ejected for them by its own defaults
    assert stats["outlier_detection.ejections_detected_consecutive_5xx"] > 0
