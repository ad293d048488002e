"""The requests of a soak: of all kinds, drawn from a seed, with what must come of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from tests.soak.kinds import BY_CONTENT, marker, shown
from tests.support.calls import SUBJECTS, Subject, assert_agrees, reference

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


class Request(NamedTuple):
    """One request."""

    name: str
    """What it is, for the report."""
    run: Callable[[opferry.Client], None]
    """Makes it, and raises AssertionError if anything but the right thing comes of it."""


def draw(random: np.random.Generator, fault_share: float) -> Request:
    """Draw a request that may run beside others; *fault_share* of them have a fault of their own.

    Without one it is right, wrong, cancelled or a plan.
    """
    subject = some_subject(random)
    if random.random() < fault_share:
        return _faulty(random, subject, int(random.choice(shown(subject))))
    kinds = (right, right, right, right, _plan, _refused, _given_up)
    return kinds[int(random.integers(len(kinds)))](random, subject)


def some_subject(random: np.random.Generator) -> Subject:
    """Draw an operator."""
    return list(SUBJECTS.values())[int(random.integers(len(SUBJECTS)))]


def right(random: np.random.Generator, subject: Subject) -> Request:
    """Return a request of an operator that succeeds."""
    arguments, options = _arguments(random, subject), _options(random)
    name = f"{subject.name}: right" + "".join(f", {word}" for word in options)

    def run(client: opferry.Client) -> None:
        result = subject.call(client, **arguments, **options)
        assert_agrees(result, reference(arguments))
        assert len(result.execution.timings.kernel_ns) == options.get("repeat", 1)

    return Request(name, run)


def _arguments(random: np.random.Generator, subject: Subject) -> dict[str, Any]:
    # small ones go as one message, large ones in a stream
    tokens = int(random.choice([1, 7, 60, 500, 4000]))
    return subject.tnd(
        tokens,
        int(random.integers(1, 4)),
        int(random.integers(1, 4)),
        int(random.choice([2, 8, 64])),
        dtype=DTYPES[int(random.integers(3))],
        with_query=bool(random.integers(2)),
        seed=int(random.integers(2**31)),
    )


def _options(random: np.random.Generator) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [
        {},
        {},
        {},
        {"repeat": 3},
        {"exclusive": True, "warmup": 1},
        {"deterministic": True, "repeat": 2},
        {"checksum": True},
    ]
    return choices[int(random.integers(len(choices)))]


def _plan(random: np.random.Generator, subject: Subject) -> Request:
    arguments = _arguments(random, subject)

    def run(client: opferry.Client) -> None:
        plan = subject.plan(client, **arguments)
        assert plan.device_workspace_bytes == plan.workspace_bytes

    return Request(f"{subject.name}: plan", run)


def _refused(random: np.random.Generator, subject: Subject) -> Request:
    arguments = {**_arguments(random, subject), "layout": 1}

    def run(client: opferry.Client) -> None:
        _fails(client, subject, arguments, "REFUSED_BY_DEVICE", check=False)

    return Request(f"{subject.name}: refused by the device", run)


def _given_up(random: np.random.Generator, subject: Subject) -> Request:
    arguments = _arguments(random, subject)
    arguments[subject.vectors[0]].flat[0] = marker(len(BY_CONTENT) - 1)  # the slow kernel

    def run(client: opferry.Client) -> None:
        try:
            subject.call(client, **arguments, timeout=0.01)
        except errors.DeadlineError:
            return
        # whoever is quick enough may have the result

    return Request(f"{subject.name}: given up", run)


def _faulty(random: np.random.Generator, subject: Subject, index: int) -> Request:
    arguments = _arguments(random, subject)
    arguments[subject.vectors[0]].flat[0] = marker(index)
    fault = BY_CONTENT[index]

    def run(client: opferry.Client) -> None:
        if fault.reason:
            _fails(client, subject, arguments, fault.reason)
        else:
            assert_agrees(subject.call(client, **arguments), reference(arguments))

    return Request(f"{subject.name}: {fault.name}", run)


def _fails(
    client: opferry.Client,
    subject: Subject,
    arguments: dict[str, Any],
    reason: str,
    **options: Any,
) -> None:
    with pytest.raises(errors.OpFerryError) as caught:
        subject.call(client, **arguments, **options)
    assert caught.value.reason == reason, f"not {reason}: {caught.value}"
    assert caught.value.request_id
