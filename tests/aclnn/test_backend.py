"""The aclnn backend on the simulator: what it says, what it releases, what it finds out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.embedded import EmbeddedServer, embedded_server
from opferry.validation import compare
from opferry.validation.standards import STANDARDS
from tests.support import simulator
from tests.support.calls import HEAVY, Subject, assert_same_bits, reference, tnd
from tests.support.processes import eventually, family


@contextmanager
def server(
    faults: str = "", workers: int = 1, options: dict[str, str] | None = None, **settings: str
) -> Iterator[tuple[EmbeddedServer, opferry.Client]]:
    with (
        embedded_server(
            backend="aclnn",
            workers=workers,
            options=options,
            environment=simulator.environment(faults, **settings),
        ) as running,
        opferry.connect(running.address, timeout=60) as client,
    ):
        yield running, client


def test_it_says_what_it_is_and_that_it_is_simulated() -> None:
    """Device, SoC, CANN version, package with digest and file; and no claim of a real device."""
    with server() as (_, client):
        info = client.server_info()
        execution = client.apply_rotary_pos_emb_grad(**tnd()).execution
    assert info.backend == execution.backend == "aclnn"
    assert not info.real_device
    assert not execution.real_device
    assert execution.soc_name.startswith("Ascend950PR")
    assert execution.soc_name.endswith("-simulated")
    assert execution.device == "npu:0"
    assert execution.cann_version.count(".") == 2
    package = execution.operator_package
    assert package == info.operator_packages[0]
    assert package.name == "built-in"
    assert package.known_answer == "PASSED"
    assert package.library_file.endswith("libopapi_transformer.so")
    assert len(package.digest) == 64
    assert execution.timings.host_to_device_ns > 0
    assert execution.timings.stage_one_ns > 0
    assert execution.timings.kernel_ns[0] > 0
    assert execution.timings.device_to_host_ns > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_are_within_the_standard_and_the_same_each_time(dtype: str) -> None:
    """grad_cos and grad_sin pass `mixed` and have the same bits over 20 repeats."""
    kind = opferry.DType.parse(dtype)
    arguments = tnd(5, 67, 33, 64, dtype=kind.numpy)
    golden = reference(arguments)
    with server() as (_, client):
        results = [client.apply_rotary_pos_emb_grad(**arguments) for _ in range(20)]
    for result in results:
        for name in ("grad_cos", "grad_sin"):
            found = getattr(result, name)
            assert compare(found, golden[name], STANDARDS[0], dtype=kind).passed
            assert found.tobytes() == getattr(results[0], name).tobytes()


def report_of(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("report-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_an_element_that_is_not_written_is_an_error() -> None:
    """Outputs are poisoned before each run; an operator that skips one is found out."""
    with server("aclnnApplyRotaryPosEmbGrad:2+:unwritten:1") as (_, client):
        with pytest.raises(errors.OperatorError, match="were not written") as caught:
            client.apply_rotary_pos_emb_grad(**tnd())
        assert caught.value.argument == "grad_key"


@pytest.mark.parametrize("subject", HEAVY)
def test_values_that_look_like_the_poison_are_none(subject: Subject) -> None:
    """An operator may give just the bits that memory was filled with."""
    poison = np.full((1, 1, 2), 0xA5A5A5A5, np.uint32).view(np.float32)
    one, zero = np.ones((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32)
    with server() as (_, client):
        result = subject.call(client, poison, poison, one, zero, layout=4)
    assert result[0].tobytes() == poison.tobytes()


@pytest.mark.parametrize("subject", HEAVY)
def test_requests_overlap_on_one_device(subject: Subject) -> None:
    """Eight calls at once on four streams, all right."""
    with server(kernel_us="20000") as (_, client), ThreadPoolExecutor(8) as pool:
        arguments = subject.tnd(200)
        expected = reference(arguments)
        calls = [pool.submit(subject.call, client, **arguments) for _ in range(32)]
        for call in calls:
            assert_same_bits(call.result(), expected)


def test_a_fault_costs_its_own_request_alone(subject: Subject) -> None:
    """Four overlapping requests, one makes a 507015: one error, three right results."""
    guilty = subject.tnd(50)
    guilty[subject.vectors[0]].flat[0] = 123.5
    innocent = subject.tnd(50)
    expected = reference(innocent)
    faults = f"{subject.stages[1]}:content=123.5:507015"
    with server(faults, kernel_us="50000") as (_, client), ThreadPoolExecutor(4) as pool:
        arguments = [innocent, guilty, innocent, innocent]
        calls = [pool.submit(subject.call, client, **item) for item in arguments]
        for item, call in zip(arguments, calls, strict=True):
            if item is innocent:
                assert_same_bits(call.result(), expected)
            else:
                with pytest.raises(errors.DeviceFaultError, match="507015") as caught:
                    call.result()
                assert caught.value.acl_error == 507015
                assert caught.value.stage == "synchronize"
                assert caught.value.soc is not None
                assert caught.value.cann_version is not None
                package = client.server_info().operator_packages[0]
                assert caught.value.operator_package == f"built-in sha256:{package.digest}"
                assert caught.value.library_file == package.library_file
                assert not caught.value.may_retry
        assert eventually(lambda: client.server_info().workers[0].ready)
        assert_same_bits(subject.call(client, **innocent), expected)


@pytest.mark.parametrize("subject", HEAVY)
def test_a_thousand_wrong_requests_cost_the_device_nothing(subject: Subject) -> None:
    """Pain case 19c: 161002 never touches the device's health."""
    wrong, right = {**subject.tnd(), "layout": 1}, subject.tnd()

    def refused() -> tuple[str, int | None]:
        with pytest.raises(errors.ContractError) as caught:
            subject.call(client, **wrong, check=False)
        return caught.value.reason, caught.value.aclnn_status

    with server() as (_, client), ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(refused) for _ in range(1000)]
        told = {call.result() for call in calls}
        assert told == {("REFUSED_BY_DEVICE", 161002)}
        worker = client.server_info().workers[0]
        assert worker.ready
        assert not worker.quarantined
        assert worker.restart_count == 0
        assert worker.trouble == ""
        assert_same_bits(subject.call(client, **right), reference(right))


@pytest.mark.parametrize("subject", HEAVY)
def test_out_of_device_memory_is_said_with_numbers(subject: Subject) -> None:
    """What does not fit is refused, and the next request is served."""
    with server(options={"device.device-memory-bytes": "20000000"}) as (_, client):
        with pytest.raises(errors.DeviceMemoryError, match="20000000") as caught:
            subject.call(client, **subject.tnd(200000))
        assert caught.value.reason == "DEVICE_MEMORY_EXHAUSTED"
        arguments = subject.tnd()
        assert_same_bits(subject.call(client, **arguments), reference(arguments))


@pytest.mark.parametrize("subject", HEAVY)
def test_memory_that_runs_out_once_is_tried_again(subject: Subject) -> None:
    """207001 at an allocation: pools are trimmed, and the request succeeds."""
    with server("aclrtMalloc:12:207001") as (_, client):
        for tokens in (3, 50, 700, 3000):
            arguments = subject.tnd(tokens)
            assert_same_bits(subject.call(client, **arguments), reference(arguments))


@pytest.mark.parametrize("name", ["wrong-sign", "halves-swapped", "one-off"])
@pytest.mark.parametrize("subject", HEAVY)
def test_a_wrong_custom_package_is_served_and_flagged(name: str, subject: Subject) -> None:
    """A kernel under development may be wrong: it runs, and every reply says so."""
    options = {"packages": f"{name}={simulator.package(name)}", "default-package": name}
    with server(options=options) as (_, client):
        execution = subject.call(client, **subject.tnd(), operator_package=name).execution
        assert execution.operator_package.name == name
        assert execution.operator_package.known_answer == "FAILED"
        assert execution.operator_package.library_file.endswith("libcust_opapi.so")
        with pytest.raises(errors.NotSupportedError, match=name):
            subject.call(client, **subject.tnd(), operator_package="another")


def test_the_environments_custom_package_comes_before_the_vendors() -> None:
    """A developer's own build is what gets tested, and the reply says from which file."""
    environment = {"ASCEND_CUSTOM_OPP_PATH": simulator.package("good")}
    with (
        embedded_server(
            backend="aclnn", environment=simulator.environment() | environment
        ) as running,
        opferry.connect(running.address) as client,
    ):
        package = client.server_info().operator_packages[0]
    assert package.library_file == str(
        Path(simulator.package("good"), "op_api/lib/libcust_opapi.so").resolve()
    )


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        ({}, {"OPFERRY_SIM_SOC": "Ascend910B"}, "need one of Ascend950PR"),
        ({}, {"LD_LIBRARY_PATH": ""}, "source CANN's set_env.sh"),
        ({"packages": "mine=/nowhere"}, {}, "/nowhere"),
    ],
)
def test_a_host_that_cannot_serve_says_what_is_missing(
    capfd: pytest.CaptureFixture[str],
    options: dict[str, str],
    environment: dict[str, str],
    words: str,
) -> None:
    """Wrong SoC, no libraries, no package: one line, and no server."""
    with (
        pytest.raises(errors.ServerError, match="did not start"),
        embedded_server(
            backend="aclnn", options=options, environment=simulator.environment() | environment
        ),
    ):
        pass
    said = capfd.readouterr().err
    assert words in said.splitlines()[-1] or words in said


def test_a_package_with_another_signature_is_not_ready(capfd: pytest.CaptureFixture[str]) -> None:
    """Ctypes cannot see signatures: the known-answer case does."""
    folder = simulator.package("shim")
    with (
        pytest.raises(errors.ServerError),
        embedded_server(
            backend="aclnn",
            options={"packages": f"shim={folder}", "default-package": "shim"},
            environment=simulator.environment(),
        ),
    ):
        pass
    assert re.search("did not start: the worker .*(SIG|exited)", capfd.readouterr().err)


def without_vendors_operators(folder: Path) -> dict[str, str]:
    """Return an environment with CANN's base libraries, and no library of operators."""
    copy = folder / "libraries"
    ignored = shutil.ignore_patterns("packages", "libopapi*")
    shutil.copytree(simulator.libraries(), copy, ignore=ignored)
    return simulator.environment() | {"LD_LIBRARY_PATH": str(copy)}


@pytest.mark.parametrize("subject", HEAVY)
def test_only_a_custom_library_has_the_operator(tmp_path: Path, subject: Subject) -> None:
    """It is enough: found, and named in every reply."""
    environment = without_vendors_operators(tmp_path)
    environment["ASCEND_CUSTOM_OPP_PATH"] = simulator.package("good")
    with (
        embedded_server(backend="aclnn", environment=environment) as running,
        opferry.connect(running.address) as client,
    ):
        execution = subject.call(client, **subject.tnd()).execution
    assert execution.operator_package.library_file.endswith("libcust_opapi.so")


def test_no_library_has_the_operator(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The start fails, with the symbol and all places where it was looked for."""
    environment = without_vendors_operators(tmp_path) | {"ASCEND_CUSTOM_OPP_PATH": "/some/where"}
    with (
        pytest.raises(errors.ServerError),
        embedded_server(backend="aclnn", workers=3, environment=environment),
    ):
        pass
    said = capfd.readouterr().err.splitlines()[-1]
    assert "symbol aclnnApplyRotaryPosEmbGradGetWorkspaceSize was not found in" in said
    assert "/some/where/op_api/lib/libcust_opapi.so" in said
    assert "libopapi_transformer.so" in said
    assert "libopapi.so" in said


def test_the_order_of_timeouts_is_checked(capfd: pytest.CaptureFixture[str]) -> None:
    """Operator < synchronisation < run, or the server does not start."""
    with (
        pytest.raises(errors.ServerError),
        server(options={"device.sync-timeout-ms": "100", "device.operator-timeout-ms": "200"}),
    ):
        pass
    said = capfd.readouterr().err
    assert "device.sync_timeout_ms" in said
    assert "device.operator_timeout_ms" in said


def test_workers_take_the_devices_that_the_server_is_shown() -> None:
    """A scheduler gives the server devices 3 and 1: worker 0 takes 3, and says so."""
    environment = simulator.environment(device_count="4") | {"ASCEND_RT_VISIBLE_DEVICES": "3,1"}
    with (
        embedded_server(backend="aclnn", workers=2, environment=environment) as running,
        opferry.connect(running.address) as client,
    ):
        assert [worker.device for worker in client.server_info().workers] == ["npu:3", "npu:1"]


def test_more_workers_than_devices_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The server does not start, and says which worker has none."""
    environment = simulator.environment() | {"ASCEND_RT_VISIBLE_DEVICES": "1"}
    with (
        pytest.raises(errors.ServerError),
        embedded_server(backend="aclnn", workers=2, environment=environment),
    ):
        pass
    assert "there is no device for worker 1" in capfd.readouterr().err


def test_two_servers_do_not_share_a_device(capfd: pytest.CaptureFixture[str]) -> None:
    """The second names the process that has it; when that is gone, the device is free."""
    environment = simulator.environment()
    with embedded_server(backend="aclnn", environment=environment) as first:
        with (
            pytest.raises(errors.ServerError),
            embedded_server(backend="aclnn", environment=environment),
        ):
            pass
        (worker,) = [pid for pid in family(first.pid) if pid != first.pid]
        assert f"device 0 is in use by process {worker}" in capfd.readouterr().err
        other = environment | {"ASCEND_RT_VISIBLE_DEVICES": "1"}
        with embedded_server(backend="aclnn", environment=other):
            pass
    with embedded_server(backend="aclnn", environment=environment):
        pass
