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
from tests.aclnn.simulated import Simulated, simulated
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.processes import eventually

OUTPUTS = ("grad_query", "grad_key", "grad_cos", "grad_sin")
STAGE_ONE, STAGE_TWO = (
    "aclnnApplyRotaryPosEmbGradGetWorkspaceSize",
    "aclnnApplyRotaryPosEmbGrad",
)
PATTERN = 0x5A


def test_each_thread_is_bound_to_its_own_device(tmp_path: Path) -> None:
    """Case 25: 16 threads on two devices; every call's device is its pointers'."""
    # a rule that costs nothing and strikes on the second physical device alone: it tells which
    # device a process really used, whatever the process itself calls it
    marker = f"{STAGE_TWO}#1:*:slow:1"
    with simulated(tmp_path, workers=2, faults=marker) as found:

        def work(number: int) -> set[str]:
            devices = set()
            with opferry.connect(found.address, timeout=100) as client:
                for turn in range(6):
                    arguments = tnd(3 + number, seed=turn)
                    result = client.apply_rotary_pos_emb_grad(**arguments)
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
    assert on_second[0]["faults"] == on_second[0][f"calls.{STAGE_TWO}"]


def of_pattern(**shape: Any) -> dict[str, Any]:
    """A call all of whose inputs are the pattern's bytes."""
    arguments = tnd(**shape)
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            value.view(np.uint8).fill(PATTERN)
    return arguments


def residue(array: np.ndarray[Any, Any]) -> int:
    """How many elements are the pattern's bytes throughout."""
    return int((array.view(np.uint32) == PATTERN * 0x01010101).sum())


def test_nothing_of_one_tenant_shows_in_anothers_outputs(tmp_path: Path) -> None:
    """Case 26: tenant A's inputs are all 0x5A; B's outputs hold none, absent ones are absent."""
    with simulated(tmp_path) as found:
        for with_query in (True, False):
            for _ in range(4):  # over the memory of each stream
                found.client.apply_rotary_pos_emb_grad(**of_pattern(tokens=300))
            arguments = tnd(300, with_query=with_query)
            with opferry.connect(found.address) as other:
                result = other.apply_rotary_pos_emb_grad(**arguments)
            # which also says that absent outputs are absent
            assert_same_bits(result, reference(arguments))
            for name in OUTPUTS:
                output = getattr(result, name)
                assert (output is None) == (not with_query and name in ("grad_cos", "grad_sin"))
                assert output is None or residue(output) == 0
        assert found.total("violations") == 0


@pytest.mark.parametrize("spoilt", ["unwritten", "partial"])
def test_what_a_kernel_did_not_write_is_an_error_and_no_residue(
    tmp_path: Path, spoilt: str
) -> None:
    """Case 26: a kernel that skips an output, whole or its end: no reply carries what lay there."""
    with simulated(tmp_path) as found:
        for index, name in enumerate(OUTPUTS):
            for _ in range(4):
                found.client.apply_rotary_pos_emb_grad(**of_pattern(tokens=300))
            found.set_rules(f"{STAGE_TWO}:1+:{spoilt}:{index}")
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
        "launched": found.total(f"calls.{STAGE_TWO}"),
        "destroyed": found.total("calls.aclDestroyAclOpExecutor"),
    }


def test_stage_two_is_called_once_for_each_executor(tmp_path: Path) -> None:
    """Case 28: over repeats and errors, each executor is launched once, or destroyed."""
    arguments = tnd(9)
    with simulated(tmp_path) as found:

        def check() -> dict[str, int]:
            now = executors(found)
            assert now["launched"] + now["destroyed"] == now["made"], now
            assert now["left"] == 0
            return now

        before = check()
        client = found.client
        client.apply_rotary_pos_emb_grad(**arguments, repeat=5)
        assert check()["launched"] == before["launched"] + 5
        failing = [
            # refused by stage one: no executor
            (f"{STAGE_ONE}:2:561002", errors.OperatorError),
            # refused by stage two, at the first and in the midst of the repeats
            (f"{STAGE_TWO}:1:return:361001", errors.OperatorError),
            (f"{STAGE_TWO}:3:return:561000", errors.OperatorError),
            # between the stages: no memory for the workspace
            ("aclrtMalloc:1+:207018", errors.DeviceMemoryError),
            ("aclrtMemcpyAsync@d2h:1:return:361001", errors.OperatorError),
        ]
        for tokens, (rule, error) in enumerate(failing, 900):
            found.set_rules(rule)
            with pytest.raises(error):
                # of a new size each time, so that memory has to be had for it
                client.apply_rotary_pos_emb_grad(**tnd(tokens * (tokens - 890)), repeat=5)
            found.set_rules()
            assert eventually(lambda: client.server_info().workers[0].ready)
            check()
        assert_same_bits(client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        check()
        assert found.total("violations") == 0
        # 361001 has the device probed by another process, twice; nothing else ends a worker
        assert [worker.restart_count for worker in client.server_info().workers] == [2]


def test_a_fault_launches_no_executor_again(tmp_path: Path) -> None:
    """Case 28: after a device fault the process ends; none of its executors is used twice."""
    with simulated(tmp_path) as found:
        found.set_rules(f"{STAGE_TWO}:2:507015")
        with pytest.raises(errors.DeviceFaultError):
            found.client.apply_rotary_pos_emb_grad(**tnd(), repeat=5)
        found.set_rules()
        assert eventually(lambda: found.client.server_info().workers[0].ready, 60)
        arguments = tnd()
        assert_same_bits(found.client.apply_rotary_pos_emb_grad(**arguments), reference(arguments))
        assert len(found.counters()) == 2
        for counters in found.counters():
            assert counters[f"calls.{STAGE_TWO}"] == counters["total.executors"]
            assert counters["violations"] == 0


def test_a_request_has_the_same_bits_each_time_on_each_device(tmp_path: Path) -> None:
    """Case 29: 20 times on each of two devices, with sums whose order would show."""
    arguments = tnd(40, 67, 33, 64)
    wanted = 20
    bits: dict[str, list[tuple[bytes, ...]]] = {"npu:0": [], "npu:1": []}
    lock = threading.Lock()
    with simulated(tmp_path, workers=2) as found:

        def work(_: int) -> None:
            while min(len(had) for had in bits.values()) < wanted:
                result = found.client.apply_rotary_pos_emb_grad(**arguments)
                with lock:
                    bits[result.execution.device].append(
                        tuple(getattr(result, name).tobytes() for name in OUTPUTS)
                    )

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        counters = found.counters()
    assert len({one for had in bits.values() for one in had}) == 1
    # and it was asked for, in every process
    assert all(one["calls.aclrtCtxSetSysParamOpt"] >= 1 for one in counters)
    assert [one["violations"] for one in counters] == [0, 0]


@pytest.mark.parametrize("tenants", [0, 6])
def test_a_poison_pill_takes_no_more_than_two_devices(tmp_path: Path, tenants: int) -> None:
    """Case 19b: what faults any device is refused after two of four; others never fail.

    Beside others, too: then the first fault has several suspects, and each is tried alone.
    """
    poison = tnd(5)
    poison["grad_query_embed"].flat[0] = 1234.5
    rule = f"{STAGE_TWO}:content=1234.5:507015"
    stop = threading.Event()
    with ThreadPoolExecutor(8) as pool, simulated(tmp_path, workers=4, faults=rule) as found:

        def tenant(number: int) -> int:
            count = 0
            with opferry.connect(found.address, timeout=100) as client:
                while not stop.is_set():
                    arguments = tnd(4 + number, seed=count % 5)
                    assert_same_bits(
                        client.apply_rotary_pos_emb_grad(**arguments), reference(arguments)
                    )
                    count += 1
            return count

        others = [pool.submit(tenant, number) for number in range(tenants)]
        outcomes = []
        try:
            while outcomes.count("REQUEST_POISONED") < 4 and len(outcomes) < 20:
                with pytest.raises(errors.DeviceFaultError) as caught:
                    found.client.apply_rotary_pos_emb_grad(**poison)
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


def test_a_poison_pill_beside_others_is_known_after_one_send(tmp_path: Path) -> None:
    """Case 19b: it faulted one device beside another request, and a second one alone: enough."""
    poison, innocent = tnd(5), tnd(6)
    poison["grad_query_embed"].flat[0] = 1234.5
    innocent["grad_query_embed"].flat[0] = 99.25
    with ThreadPoolExecutor(2) as pool, simulated(tmp_path, workers=4) as found:
        found.set_rules(
            f"{STAGE_TWO}:content=1234.5:507015", f"{STAGE_TWO}:content=99.25:hold:{{hold}}"
        )
        client = found.client

        def running() -> int:
            return sum(worker.running_count for worker in client.server_info().workers)

        beside = pool.submit(client.apply_rotary_pos_emb_grad, **innocent)
        assert eventually(lambda: running() == 1, 60)
        with pytest.raises(errors.DeviceFaultError) as caught:
            client.apply_rotary_pos_emb_grad(**poison)
        assert caught.value.reason == "DEVICE_FAULT"
        with pytest.raises(errors.DeviceFaultError) as caught:
            client.apply_rotary_pos_emb_grad(**poison)
        assert caught.value.reason == "REQUEST_POISONED"
        found.hold.unlink()
        assert_same_bits(beside.result(), reference(innocent))
        assert eventually(lambda: all(worker.ready for worker in client.server_info().workers), 60)
        touched = [worker for worker in client.server_info().workers if worker.restart_count]
        assert len(touched) == 2
