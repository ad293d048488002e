"""Devices that do not come back: who notices, who is served meanwhile, and when they return."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opferry import errors
from tests.aclnn.simulated import simulated
from tests.support.calls import HEAVY, Subject, assert_same_bits, reference
from tests.support.processes import eventually


@pytest.mark.full
def test_a_wedged_device_is_quarantined_and_comes_back(tmp_path: Path, subject: Subject) -> None:
    """19a: its binds fail three times; another device serves, and it returns when it is well."""
    arguments = subject.tnd()
    with simulated(tmp_path, workers=2) as farm:
        farm.set_rules(
            f"{subject.stages[1]}#0:1:507015",
            "aclrtSetDevice#0:*:507018",
            "aclrtCreateContext#0:*:507018",
        )

        told: list[int | None] = []
        # until the guilty device has had its turn
        for _ in range(20):
            try:
                subject.call(farm.client, **arguments)
            except errors.DeviceFaultError as error:
                told.append(error.acl_error)
                break
        assert told == [507015]
        assert eventually(lambda: farm.client.server_info().workers[0].quarantined, 30)
        worker = farm.client.server_info().workers[0]
        assert worker.device == "npu:0"
        assert "507018" in worker.trouble
        assert farm.client.server_info().serving
        for _ in range(3):
            result = subject.call(farm.client, **arguments)
            assert_same_bits(result, reference(arguments))
            assert result.execution.device == "npu:1"
        farm.set_rules()
        assert eventually(lambda: farm.client.server_info().workers[0].ready, 30)
        assert not farm.client.server_info().workers[0].quarantined


@pytest.mark.parametrize("code", [507053, 507054])
@pytest.mark.parametrize("subject", HEAVY)
def test_a_device_with_damaged_memory_is_out_of_service_for_good(
    tmp_path: Path, code: int, subject: Subject
) -> None:
    """No probe returns it; what waits for it alone is told so, with the code."""
    arguments = subject.tnd()
    guilty = subject.tnd()
    guilty[subject.vectors[0]].flat[0] = 512
    with simulated(tmp_path, faults=f"{subject.stages[1]}:content=512:{code}") as farm:
        with pytest.raises(errors.DeviceFaultError, match=str(code)):
            subject.call(farm.client, **guilty)
        assert eventually(lambda: farm.client.server_info().workers[0].quarantined)
        info = farm.client.server_info()
        assert not info.serving
        assert info.workers[0].device == "npu:0"
        with pytest.raises(errors.OperatorError, match=str(code)) as caught:
            subject.call(farm.client, **arguments)
        assert caught.value.reason == "OPERATOR_PACKAGE_NOT_READY"
        restarts = info.workers[0].restart_count
        time.sleep(1)
        assert farm.client.server_info().workers[0].restart_count == restarts


@pytest.mark.parametrize("subject", HEAVY)
def test_a_runtime_error_of_the_stages_has_the_device_probed(
    tmp_path: Path, subject: Subject
) -> None:
    """361001: the worker lives, but its successor must pass the known-answer case."""
    arguments = subject.tnd()
    with simulated(tmp_path) as farm:
        token = tmp_path / "once"
        token.touch()
        farm.set_rules(f"{subject.stages[1]}:1:return:361001:token={token}")
        with pytest.raises(errors.OperatorError, match="361001"):
            subject.call(farm.client, **arguments)
        assert_same_bits(subject.call(farm.client, **arguments), reference(arguments))
        assert farm.client.server_info().workers[0].restart_count == 1


@pytest.mark.full
def test_the_code_of_a_fault_is_never_lost(tmp_path: Path, subject: Subject) -> None:
    """Also where the worker ends with messages of the front unread, as busy ones do."""
    innocent, guilty = subject.tnd(200), subject.tnd(200)
    guilty[subject.vectors[0]].flat[0] = 512
    expected = reference(innocent)
    stop = threading.Event()
    with (
        simulated(
            tmp_path,
            faults=f"{subject.stages[1]}:content=512:507015",
            limits={"idle_memory_bytes": 0},
            kernel_us="2000",
        ) as farm,
        ThreadPoolExecutor(6) as pool,
    ):

        def others() -> None:
            while not stop.is_set():
                assert_same_bits(subject.call(farm.client, **innocent), expected)

        busy = [pool.submit(others) for _ in range(5)]
        try:
            for turn in range(6):
                guilty[subject.vectors[0]].flat[1] = turn
                with pytest.raises(errors.DeviceFaultError) as caught:
                    subject.call(farm.client, **guilty)
                assert (caught.value.acl_error, caught.value.stage) == (507015, "synchronize")
        finally:
            stop.set()
        for call in busy:
            call.result()
