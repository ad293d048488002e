"""Execution options on the device: warm-up, timing alone, equal bits, memory without poison."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opferry
from opferry import errors
from tests.aclnn.test_backend import server
from tests.support import event_log
from tests.support.calls import GRAD, SUBJECTS, Subject, assert_same_bits, reference, tnd

HYGIENE = {"device.hygiene": ""}


def kernel_count(log: Path) -> int:
    """Return how many kernels an event log has."""
    return sum(task.what == "kernel" for task in event_log.read(log))


def test_warm_up_runs_are_not_reported(tmp_path: Path, subject: Subject) -> None:
    """Three runs to warm up and two timed ones: five kernels, two times."""
    log = tmp_path / "log"
    arguments = subject.tnd()
    with server(log=str(log)) as (_, client):
        before = kernel_count(log)
        result = subject.call(client, **arguments, warmup=3, repeat=2)
        assert len(result.execution.timings.kernel_ns) == 2
        assert kernel_count(log) - before == 5
        assert_same_bits(result, reference(arguments))


def test_an_exclusive_request_overlaps_with_nothing(tmp_path: Path) -> None:
    """Among many others on four streams, its kernel has the device for itself."""
    log = tmp_path / "log"
    others, timed = tnd(20), tnd(21)
    timed["grad_query_embed"].flat[0] = 777.0
    with server(log=str(log), kernel_us="3000") as (_, client), ThreadPoolExecutor(9) as pool:
        calls = []
        for turn in range(64):
            alone = turn % 8 == 3
            arguments = timed if alone else others
            call = client.apply_rotary_pos_emb_grad
            calls.append(pool.submit(call, **arguments, exclusive=alone))
        for call in calls:
            call.result()
    tasks = event_log.read(log)
    exclusive = [task for task in tasks if task.content == 777.0]
    assert len(exclusive) == 8
    for task in exclusive:
        assert event_log.overlapping(task, tasks) == []
    # and the others did overlap, so that this says something
    kernels = [task for task in tasks if task.what == "kernel" and task not in exclusive]
    assert any(event_log.overlapping(task, kernels) for task in kernels)


def test_runs_that_differ_are_an_error(subject: Subject) -> None:
    """An element of the second output is off in the third of five runs: which is named."""
    faults = f"{subject.stages[1]}:4:corrupt:1"  # the first is the known-answer case
    arguments = subject.tnd(300)
    with server(faults) as (_, client):
        with pytest.raises(
            errors.OperatorError, match="run 3 gave other bits than run 1"
        ) as caught:
            subject.call(client, **arguments, repeat=5, deterministic=True)
        assert caught.value.reason == "NOT_DETERMINISTIC"
        assert caught.value.argument == subject.outputs[1]
        result = subject.call(client, **arguments, repeat=5, deterministic=True)
        assert_same_bits(result, reference(arguments))
        assert len(result.execution.timings.kernel_ns) == 5


@pytest.mark.parametrize(
    ("operator", "output"),
    [(name, output) for name, subject in SUBJECTS.items() for output in subject.outputs],
)
def test_writing_behind_an_output_is_found(operator: str, output: str) -> None:
    """With --device.hygiene a kernel that overruns is told, which output and how far."""
    subject = SUBJECTS[operator]
    arguments = subject.tnd()
    faults = f"{subject.stages[1]}:2:overrun:{subject.outputs.index(output)}"
    with server(faults, options=HYGIENE) as (_, client):
        with pytest.raises(errors.OperatorError, match=r"wrote outside of it.*behind") as caught:
            subject.call(client, **arguments)
        assert caught.value.argument == output
        assert_same_bits(subject.call(client, **arguments), reference(arguments))


def test_without_hygiene_an_overrun_goes_unseen(subject: Subject) -> None:
    """What the guards are for: the outputs themselves are right."""
    arguments = subject.tnd()
    with server(f"{subject.stages[1]}:2:overrun:1") as (_, client):
        assert_same_bits(subject.call(client, **arguments), reference(arguments))


def test_hygiene_changes_no_result(tmp_path: Path, subject: Subject) -> None:
    """Guards and a workspace full of the pattern: the same bits, and no rule broken."""
    report = tmp_path / "report.json"
    arguments = subject.tnd(500)
    with server(options=HYGIENE, report=str(report), workspace="4096") as (_, client):
        for _ in range(3):
            assert_same_bits(subject.call(client, **arguments), reference(arguments))
    assert json.loads(report.read_text())["violations"] == []


def test_only_an_exclusive_request_may_go_without_the_pattern() -> None:
    """Refused by client and server alike."""
    with server() as (_, client), pytest.raises(errors.RequestError, match="exclusive") as caught:
        client.apply_rotary_pos_emb_grad(**tnd(), poison_outputs=False)
    assert caught.value.argument == "poison_outputs"


def test_memory_that_another_client_used_is_cleared() -> None:
    """Without the pattern an output that is not written shows zeros, or one's own last result."""
    faults = f"{GRAD.stages[1]}:3+:unwritten:1"
    arguments = tnd(64)
    with server(faults) as (running, first):
        # another name, another connection: gRPC shares one among the channels of a process
        port = running.address.rpartition(":")[2]
        second = opferry.connect(f"localhost:{port}")
        secret = first.apply_rotary_pos_emb_grad(**arguments)
        assert secret.grad_key.any()
        other = second.apply_rotary_pos_emb_grad(**arguments, exclusive=True, poison_outputs=False)
        assert not other.grad_key.any()
        assert np.array_equal(other.grad_query, secret.grad_query)
        second.close()
