"""What overlaps on a device, by the simulator's event log and by holding what must hold up nobody.

Kernels take long on purpose, and tasks are held by files, so that the speed of the machine that
runs the tests decides nothing.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry_server.backends.aclnn.backend import STREAM_COUNT
from tests.aclnn.simulated import simulated
from tests.support import event_log
from tests.support.calls import Subject, assert_same_bits, reference
from tests.support.processes import eventually

HELD = 777.25
"""How the first input begins of the request that is held."""

KERNEL_US = 400_000
"""Much longer than what the host does between two kernels, on a busy machine too."""


def arguments_of(subject: Subject, first: float) -> dict[str, Any]:
    """Return a call whose kernel is known in the log by its first element."""
    arguments = subject.tnd(20)
    arguments[subject.vectors[0]].flat[0] = np.float32(first)
    return arguments


@pytest.mark.full
def test_three_streams_are_busy_for_four_fifths_of_a_run(tmp_path: Path, subject: Subject) -> None:
    """Eight requests are kept up; of the time until the last are begun, 80 percent."""
    count = 20
    with ThreadPoolExecutor(8) as pool, simulated(tmp_path, kernel_us=str(KERNEL_US)) as found:
        numbers = [float(1000 + index) for index in range(count)]
        calls = [
            pool.submit(subject.call, found.client, **arguments_of(subject, number))
            for number in numbers
        ]
        for number, call in zip(numbers, calls, strict=True):
            assert_same_bits(call.result(), reference(arguments_of(subject, number)))
        intervals = found.intervals()
    kernels = [one for one in intervals if one.what == "kernel" and one.content in numbers]
    assert len(kernels) == count
    assert len(event_log.by_stream(kernels)) == STREAM_COUNT
    # until the line runs dry: the last requests have nothing left to overlap with
    begin_ns, end_ns = kernels[0].begin_ns, kernels[-1].begin_ns
    assert end_ns - begin_ns >= (count // STREAM_COUNT - 1) * KERNEL_US * 1000
    share = event_log.busy_share(intervals, 3, begin_ns, end_ns)
    assert share >= 0.8, f"three streams are busy for {share:.0%}"


def test_as_many_kernels_as_streams_run_at_once(tmp_path: Path, subject: Subject) -> None:
    """All kernels are held: four begin, and the other four requests wait outside."""
    with ThreadPoolExecutor(8) as pool, simulated(tmp_path) as found:
        found.set_rules(f"{subject.stages[1]}:1+:hold:{{hold}}")
        numbers = [float(2000 + index) for index in range(8)]
        calls = [
            pool.submit(subject.call, found.client, **arguments_of(subject, number))
            for number in numbers
        ]
        assert eventually(lambda: len(found.running("kernel")) == STREAM_COUNT, 60)
        held = found.running("kernel")
        assert len(event_log.by_stream(held)) == STREAM_COUNT
        assert not any(call.done() for call in calls)
        found.hold.unlink()
        for number, call in zip(numbers, calls, strict=True):
            assert_same_bits(call.result(), reference(arguments_of(subject, number)))
        kernels = [one for one in found.intervals() if one.content in numbers]
        assert len(kernels) == len(numbers)
        assert all(one.ended for one in kernels)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("{kernel}:content={held}:hold:{{hold}}", "kernel"),
        ("aclrtMemcpyAsync@h2d:1:hold:{{hold}}", "h2d"),
        ("aclrtMemcpyAsync@d2h:1:hold:{{hold}}", "d2h"),
    ],
)
def test_nobody_waits_for_another_requests_task(
    tmp_path: Path, rule: str, what: str, subject: Subject
) -> None:
    """While one request's kernel or copy is held, the copies and kernels of others begin and end.

    Twice as many others come and go as streams are left; had any copy of theirs waited for the held
    task, its request would not have come back.
    """
    with ThreadPoolExecutor(8) as pool, simulated(tmp_path) as found:
        found.set_rules(rule.format(kernel=subject.stages[1], held=HELD))
        first: Future[Any] = pool.submit(subject.call, found.client, **arguments_of(subject, HELD))
        assert eventually(lambda: len(found.running(what)) == 1, 60)
        (held,) = found.running(what)
        numbers = [float(3000 + index) for index in range(2 * (STREAM_COUNT - 1))]
        calls = [
            pool.submit(subject.call, found.client, **arguments_of(subject, number))
            for number in numbers
        ]
        for number, call in zip(numbers, calls, strict=True):
            assert_same_bits(call.result(), reference(arguments_of(subject, number)))
        assert not first.done()
        assert found.running(what) == [held]
        found.hold.unlink()
        assert_same_bits(first.result(), reference(arguments_of(subject, HELD)))
        intervals = found.intervals()
    (held,) = [one for one in intervals if (one.stream, one.task) == (held.stream, held.task)]
    assert held.ended
    others = event_log.overlapping(held, intervals)
    within = event_log.between(others, held.begin_ns, held.end_ns)
    assert within == others
    kinds = [one.what for one in within]
    assert kinds.count("kernel") == len(numbers)
    assert kinds.count("h2d") == len(subject.operator.inputs) * len(numbers)
    assert kinds.count("d2h") == len(subject.outputs) * len(numbers)
    assert len(event_log.by_stream(within)) <= STREAM_COUNT - 1
