"""A soak: many requests, a tenth of them with faults, and nothing left of any of them."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import opferry
from opferry import errors
from tests.aclnn.simulated import Simulated, simulated
from tests.simulator.build import read_counters
from tests.soak.kinds import ALONE, Fault, content_rules, rule_alone
from tests.soak.requests import draw, right, some_subject
from tests.support import simulator
from tests.support.processes import (
    arena_count,
    descriptors,
    eventually,
    family,
    rss_anon_bytes,
    thread_count,
)

BATCH = 50
"""The requests between two faults that strike whoever comes."""

LOOKS = 5
"""How often the front is looked at, early on and at the end."""

CALLERS = 8
WORKERS = 2
CONTENT_SHARE = 0.08
"""The share of faults that go with one request's content; with those alone it is a tenth."""

RECYCLE_COUNT = 300

REST_S = 25.0
"""How long a thread that gRPC's pool made for a crowd may live on without work: 20 s, and some."""

HANDLES = ("tensors", "executors", "events")
"""What a worker that runs nothing must have destroyed as often as created."""


@dataclass(frozen=True)
class Snapshot:
    """What the front holds while nothing runs."""

    threads: int
    """In an outcome: when nothing has run for a while, and spare ones have ended."""
    descriptors: int
    memfds: int
    anonymous_bytes: int
    """The allocator keeps some MiB more or less from one look to the next: a median says more."""

    @classmethod
    def median(cls, looks: Sequence[Snapshot]) -> Snapshot:
        """Return the median of each figure."""
        return cls(
            *(
                int(median(getattr(look, item.name) for look in looks))
                for item in dataclasses.fields(cls)
            )
        )

    @classmethod
    def of(cls, pid: int) -> Snapshot:
        """Wait until nothing runs any more and the last arenas are gone, and look."""
        assert eventually(lambda: arena_count(pid) == 0, 60)
        time.sleep(2.5)  # free memory goes back each second
        held = descriptors(pid)
        memfds = sum("memfd:" in target for target in held)
        return cls(thread_count(pid), len(held), memfds, rss_anon_bytes(pid))


@dataclass(frozen=True)
class Outcome:
    """What a soak came to."""

    requests: int
    """How many were made."""
    kinds: Counter[str]
    """How many of each kind."""
    first: Snapshot
    """The front after `first_at` requests and the next batches, the median."""
    last: Snapshot
    """The front after the last batches, the median."""
    restarts: int
    """How often worker processes were replaced."""


def soak(folder: Path, count: int, *, seed: int = 0, first_at: int = 500) -> Outcome:
    """Run a soak.

    Args:
        folder: an empty folder, for the simulator's files.
        count: how many requests to make.
        seed: draws them.
        first_at: after so many requests the front is looked at for the first time.

    Raises:
        AssertionError: a wrong answer, a wrong reason, or something left behind.
    """
    options = {
        "device.hygiene": "",
        "device.operator-timeout-ms": "300",
        "device.sync-timeout-ms": "20000",
        "recycle-count": str(RECYCLE_COUNT),
        "packages": f"mine={simulator.package('good')}",
    }
    random = np.random.default_rng(seed)
    kinds: Counter[str] = Counter()
    looks: list[Snapshot] = []
    threads: list[int] = []
    done = 0
    with (
        simulated(
            folder, WORKERS, options=options, limits={"idle_memory_bytes": 0}, log="/dev/null"
        ) as farm,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        farm.set_rules(*content_rules())
        while done < count:
            _batch(farm, pool, random, kinds)
            kinds[_alone(farm, random)] += 1
            _in_another_package(farm, random, kinds)
            done += BATCH
            if 0 <= done - first_at < LOOKS * BATCH or done > count - LOOKS * BATCH:
                looks.append(Snapshot.of(farm.server.pid))
                if len(looks) == LOOKS or done >= count:
                    time.sleep(REST_S)
                    threads.append(thread_count(farm.server.pid))
        restarts = sum(worker.restart_count for worker in farm.client.server_info().workers)
        _check_workers(farm)
    _check_files(folder)
    first, last = (
        dataclasses.replace(Snapshot.median(some), threads=at_rest)
        for some, at_rest in ((looks[:LOOKS], threads[0]), (looks[-LOOKS:], threads[-1]))
    )
    return Outcome(done, kinds, first, last, restarts)


def assert_steady(outcome: Outcome, growth: float = 0.1) -> None:
    """Assert that the front holds at the end what it held early on.

    Args:
        outcome: of the soak.
        growth: by which share of it the anonymous memory may differ.

    Raises:
        AssertionError: for another count of threads, descriptors or memfds, or too much memory.
    """
    first, last = outcome.first, outcome.last
    assert last.threads == first.threads, outcome
    assert last.descriptors == first.descriptors, outcome
    assert last.memfds == first.memfds, outcome
    assert abs(last.anonymous_bytes - first.anonymous_bytes) < growth * first.anonymous_bytes, (
        outcome
    )


def _batch(
    farm: Simulated, pool: ThreadPoolExecutor, random: np.random.Generator, kinds: Counter[str]
) -> None:
    requests = [draw(random, CONTENT_SHARE) for _ in range(BATCH - 2)]
    calls = [pool.submit(request.run, farm.client) for request in requests]
    for request, call in zip(requests, calls, strict=True):
        try:
            call.result()
        except Exception as error:
            raise AssertionError(f"{request.name}: {error}") from error
        kinds[request.name] += 1


def _alone(farm: Simulated, random: np.random.Generator) -> str:
    """Make a request that a fault of the runtime strikes, if it makes that call."""
    # who gave up has left a run behind, and a new worker runs its known-answer case: the fault must
    # strike neither
    assert eventually(lambda: _is_quiet(farm), 60)
    subject = some_subject(random)
    fault: Fault = ALONE[int(random.integers(len(ALONE)))]
    token = farm.folder / "token"
    token.touch()
    farm.set_rules(*content_rules(), f"{rule_alone(fault, subject)}:token={token}")
    told: errors.OpFerryError | None = None
    try:
        right(random, subject).run(farm.client)
    except errors.OpFerryError as error:
        told = error
    struck = not token.exists()
    token.unlink(missing_ok=True)
    farm.set_rules(*content_rules())
    reason = "" if told is None else told.reason
    assert reason == (fault.reason if struck else ""), f"{fault.name}: {told!r}"
    name = f"{subject.name}: {fault.name}"
    return name if struck else f"{name} (did not strike)"


def _is_quiet(farm: Simulated) -> bool:
    workers = farm.client.server_info().workers
    return all(worker.ready and not worker.running_count for worker in workers)


def _in_another_package(farm: Simulated, random: np.random.Generator, kinds: Counter[str]) -> None:
    subject = some_subject(random)
    if random.random() < 0.2:
        heads, one = (opferry.TensorSpec(opferry.DType.FLOAT32, (1, n, 8)) for n in (2, 1))
        inputs = {**dict.fromkeys(subject.vectors, heads), "cos": one, "sin": one}
        # the other device may be on its way back from a fault: one of them changes
        for name in ("mine", "built-in"):
            result = subject.plan(farm.client, **inputs, layout=4, operator_package=name)
            assert result.operator_package is not None
            assert result.operator_package.name == name
        kinds[f"{subject.name}: another package"] += 1
    else:
        request = right(random, subject)
        request.run(farm.client)
        kinds[request.name] += 1


def _check_workers(farm: Simulated) -> None:
    """What the live workers have created, they have destroyed."""
    assert eventually(lambda: all(worker.ready for worker in farm.client.server_info().workers), 30)
    live = [farm.folder / f"counters-{pid}" for pid in family(farm.server.pid)[1:]]
    assert len(live) == WORKERS
    for file in live:
        counters = read_counters(file)
        left = {name: counters[f"live.{name}"] for name in HANDLES}
        assert not any(left.values()), left


def _check_files(folder: Path) -> None:
    """No process has broken a rule, whether it lives or not."""
    for file in folder.glob("counters-*"):
        assert read_counters(file)["violations"] == 0, file
