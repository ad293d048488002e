"""What users of other systems suffered from, on simulated devices: cases by their numbers there."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry_server.backends.aclnn.operators import BINDINGS
from tests.aclnn.simulated import Simulated, simulated
from tests.support.calls import GRAD, HEAVY, SUMS, Subject, assert_same_bits, reference, tnd
from tests.support.processes import eventually

STAGES_TWO = [binding.function for binding in BINDINGS.values()]
PATTERN = 0x5A


@pytest.mark.parametrize("subject", HEAVY)
def test_each_thread_is_bound_to_its_own_device(tmp_path: Path, subject: Subject) -> None:
    """Case 25: 16 threads on two devices; every call's device is its pointers'."""
    # a rule that costs nothing and strikes on the second physical device alone: it tells which
    # device a process really used, whatever the process itself calls it
    marker = f"{subject.stages[1]}#1:*:slow:1"
    with simulated(tmp_path, workers=2, faults=marker) as found:

        def work(number: int) -> set[str]:
            devices = set()
            with opferry.connect(found.address, timeout=100) as client:
                for turn in range(6):
                    arguments = subject.tnd(3 + number, seed=turn)
                    result = subject.call(client, **arguments)
                    assert_same_bits(result, reference(arguments))
                    devices.add(result.execution.device)
            return devices

        with ThreadPoolExecutor(16) as pool:
            devices = set().union(*pool.map(work, range(16)))
        counters = found.counters()
    assert devices == {"npu:0", "npu:1"}
    assert len(counters) == 2
    assert [one["violations"] for one in counters] == [0, 0]
    assert sum(one["kernels"] for one in counters) >= 16 * 6
    on_second = [one for one in counters if one["faults"]]
    assert len(on_second) == 1, "one process on each physical device"
    assert on_second[0]["faults"] == on_second[0][f"calls.{subject.stages[1]}"]


def of_pattern(subject: Subject, **shape: Any) -> dict[str, Any]:
    """A call all of whose inputs are the pattern's bytes."""
    arguments = subject.tnd(**shape)
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            value.view(np.uint8).fill(PATTERN)
    return arguments


def residue(array: np.ndarray[Any, Any]) -> int:
    """How many elements are the pattern's bytes throughout."""
    return int((array.view(np.uint32) == PATTERN * 0x01010101).sum())


@pytest.mark.parametrize("subject", HEAVY)
def test_nothing_of_one_tenant_shows_in_anothers_outputs(tmp_path: Path, subject: Subject) -> None:
    """Case 26: tenant A's inputs are all 0x5A; B's outputs hold none, absent ones are absent."""
    with simulated(tmp_path) as found:
        for with_query in (True, False):
            for _ in range(4):  # over the memory of each stream
                subject.call(found.client, **of_pattern(subject, tokens=300))
            arguments = subject.tnd(300, with_query=with_query)
            with opferry.connect(found.address) as other:
                result = subject.call(other, **arguments)
            # which also says that absent outputs are absent
            assert_same_bits(result, reference(arguments))
            for name in subject.outputs:
                output = getattr(result, name)
                assert (output is None) == (not with_query and name in SUMS)
                assert output is None or residue(output) == 0
        assert found.total("violations") == 0


@pytest.mark.parametrize("spoilt", ["unwritten", "partial"])
def test_what_a_kernel_did_not_write_is_an_error_and_no_residue(
    tmp_path: Path, spoilt: str
) -> None:
    """Case 26: a kernel that skips an output, whole or its end: no reply carries what lay there."""
    with simulated(tmp_path) as found:
        for index, name in enumerate(GRAD.outputs):
            for _ in range(4):
                found.client.apply_rotary_pos_emb_grad(**of_pattern(GRAD, tokens=300))
            found.set_rules(f"{GRAD.stages[1]}:1+:{spoilt}:{index}")
            with pytest.raises(errors.OperatorError, match="were not written") as caught:
                found.client.apply_rotary_pos_emb_grad(**tnd(300))
            assert caught.value.argument == name
            found.set_rules()
        arguments = tnd(300)
        assert_same_bits(found.client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert found.total("violations") == 0


def executors(found: Simulated) -> dict[str, int]:
    """What became of executors, over all worker processes."""
    return {
        "made": found.total("total.executors"),
        "left": found.total("live.executors"),
        "launched": sum(found.total(f"calls.{name}") for name in STAGES_TWO),
        "destroyed": found.total("calls.aclDestroyAclOpExecutor"),
    }


@pytest.mark.parametrize("subject", HEAVY)
def test_stage_two_is_called_once_for_each_executor(tmp_path: Path, subject: Subject) -> None:
    """Case 28: over repeats and errors, each executor is launched once, or destroyed."""
    arguments = subject.tnd(9)
    with simulated(tmp_path) as found:

        def check() -> dict[str, int]:
            now = executors(found)
            assert now["launched"] + now["destroyed"] == now["made"], now
            assert now["left"] == 0
            return now

        before = check()
        client = found.client
        subject.call(client, **arguments, repeat=5)
        assert check()["launched"] == before["launched"] + 5
        failing = [
            # refused by stage one: no executor
            (f"{subject.stages[0]}:2:561002", errors.OperatorError),
            # refused by stage two, at the first and in the midst of the repeats
            (f"{subject.stages[1]}:1:return:361001", errors.OperatorError),
            (f"{subject.stages[1]}:3:return:561000", errors.OperatorError),
            # between the stages: no memory for the workspace
            ("aclrtMalloc:1+:207018", errors.DeviceMemoryError),
            ("aclrtMemcpyAsync@d2h:1:return:361001", errors.OperatorError),
        ]
        for tokens, (rule, error) in enumerate(failing, 900):
            found.set_rules(rule)
            with pytest.raises(error):
                # of a new size each time, so that memory has to be had for it
                subject.call(client, **subject.tnd(tokens * (tokens - 890)), repeat=5)
            found.set_rules()
            assert eventually(lambda: client.server_info().workers[0].ready)
            check()
        assert_same_bits(subject.call(client, **arguments), reference(arguments))
        check()
        assert found.total("violations") == 0
        # 361001 has the device probed by another process, twice; nothing else ends a worker
        assert [worker.restart_count for worker in client.server_info().workers] == [2]


@pytest.mark.parametrize("subject", HEAVY)
def test_a_fault_launches_no_executor_again(tmp_path: Path, subject: Subject) -> None:
    """Case 28: after a device fault the process ends; none of its executors is used twice."""
    with simulated(tmp_path) as found:
        found.set_rules(f"{subject.stages[1]}:2:507015")
        with pytest.raises(errors.DeviceFaultError):
            subject.call(found.client, **subject.tnd(), repeat=5)
        found.set_rules()
        assert eventually(lambda: found.client.server_info().workers[0].ready, 60)
        arguments = subject.tnd()
        assert_same_bits(subject.call(found.client, **arguments), reference(arguments))
        assert len(found.counters()) == 2
        for counters in found.counters():
            launched = sum(counters[f"calls.{name}"] for name in STAGES_TWO)
            assert launched == counters["total.executors"]
            assert counters["violations"] == 0


@pytest.mark.parametrize("subject", HEAVY)
def test_a_request_has_the_same_bits_each_time_on_each_device(
    tmp_path: Path, subject: Subject
) -> None:
    """Case 29: 20 times on each of two devices, with sums whose order would show."""
    arguments = subject.tnd(40, 67, 33, 64)
    wanted = 20
    bits: dict[str, list[tuple[bytes, ...]]] = {"npu:0": [], "npu:1": []}
    lock = threading.Lock()
    with simulated(tmp_path, workers=2) as found:

        def work(_: int) -> None:
            while min(len(had) for had in bits.values()) < wanted:
                result = subject.call(found.client, **arguments)
                with lock:
                    bits[result.execution.device].append(
                        tuple(getattr(result, name).tobytes() for name in subject.outputs)
                    )

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        counters = found.counters()
    assert len({one for had in bits.values() for one in had}) == 1
    # and it was asked for, in every process
    assert all(one["calls.aclrtCtxSetSysParamOpt"] >= 1 for one in counters)
    assert [one["violations"] for one in counters] == [0, 0]


@pytest.mark.parametrize("tenants", [0, 6])
@pytest.mark.parametrize("subject", HEAVY)
def test_a_poison_pill_takes_no_more_than_two_devices(
    tmp_path: Path, tenants: int, subject: Subject
) -> None:
    """Case 19b: what faults any device is refused after two of four; others never fail.

    Beside others, too: then the first fault has several suspects, and each is tried alone.
    """
    poison = subject.tnd(5)
    poison[subject.vectors[0]].flat[0] = 1234.5
    rule = f"{subject.stages[1]}:content=1234.5:507015"
    stop = threading.Event()
    with ThreadPoolExecutor(8) as pool, simulated(tmp_path, workers=4, faults=rule) as found:

        def tenant(number: int) -> int:
            count = 0
            with opferry.connect(found.address, timeout=100) as client:
                while not stop.is_set():
                    arguments = subject.tnd(4 + number, seed=count % 5)
                    assert_same_bits(subject.call(client, **arguments), reference(arguments))
                    count += 1
            return count

        others = [pool.submit(tenant, number) for number in range(tenants)]
        outcomes = []
        try:
            while outcomes.count("REQUEST_POISONED") < 4 and len(outcomes) < 20:
                with pytest.raises(errors.DeviceFaultError) as caught:
                    subject.call(found.client, **poison)
                outcomes.append(caught.value.reason)
        finally:
            stop.set()
        served = [other.result() for other in others]

        def workers() -> list[Any]:
            return list(found.client.server_info().workers)

        assert eventually(lambda: all(worker.ready for worker in workers()), 60)
        faults = outcomes.index("REQUEST_POISONED")
        assert faults == 2 or (tenants and faults)
        assert set(outcomes[:faults]) == {"DEVICE_FAULT"}
        assert set(outcomes[faults:]) == {"REQUEST_POISONED"}
        touched = [worker.device for worker in workers() if worker.restart_count]
        assert len(touched) == 2, f"{touched} were faulted"
        assert all(count > 0 for count in served)
        assert found.total("violations") == 0


@pytest.mark.parametrize("subject", HEAVY)
def test_a_poison_pill_beside_others_is_known_after_one_send(
    tmp_path: Path, subject: Subject
) -> None:
    """Case 19b: it faulted one device beside another request, and a second one alone: enough."""
    poison, innocent = subject.tnd(5), subject.tnd(6)
    poison[subject.vectors[0]].flat[0] = 1234.5
    innocent[subject.vectors[0]].flat[0] = 99.25
    with ThreadPoolExecutor(2) as pool, simulated(tmp_path, workers=4) as found:
        found.set_rules(
            f"{subject.stages[1]}:content=1234.5:507015",
            f"{subject.stages[1]}:content=99.25:hold:{{hold}}",
        )
        client = found.client

        def running() -> int:
            return sum(worker.running_count for worker in client.server_info().workers)

        beside = pool.submit(subject.call, client, **innocent)
        assert eventually(lambda: running() == 1, 60)
        with pytest.raises(errors.DeviceFaultError) as caught:
            subject.call(client, **poison)
        assert caught.value.reason == "DEVICE_FAULT"
        with pytest.raises(errors.DeviceFaultError) as caught:
            subject.call(client, **poison)
        assert caught.value.reason == "REQUEST_POISONED"
        found.hold.unlink()
        assert_same_bits(beside.result(), reference(innocent))
        assert eventually(lambda: all(worker.ready for worker in client.server_info().workers), 60)
        touched = [worker for worker in client.server_info().workers if worker.restart_count]
        assert len(touched) == 2
