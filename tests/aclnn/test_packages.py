"""Several operator packages in one server: who runs, what is said of it, what changes."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opferry import errors
from tests.aclnn.test_backend import server
from tests.simulator.build import read_counters
from tests.support import simulator
from tests.support.calls import HEAVY, Subject, assert_same_bits, reference
from tests.support.processes import eventually

LIBRARY = Path("op_api", "lib", "libcust_opapi.so")


def packages(**folders: str) -> dict[str, str]:
    return {"packages": ",".join(f"{name}={folder}" for name, folder in folders.items())}


def copy_of(name: str, folder: Path) -> Path:
    """Install one of the simulator's packages into a folder of the test's own."""
    (folder / LIBRARY).parent.mkdir(parents=True, exist_ok=True)
    # another file in its place, as an installer does it: a mapped library is never written to
    fresh = folder / LIBRARY.with_suffix(".new")
    shutil.copy(Path(simulator.package(name), LIBRARY), fresh)
    fresh.replace(folder / LIBRARY)
    return folder


@pytest.mark.parametrize("subject", HEAVY)
def test_two_packages_are_compared_through_one_server(subject: Subject) -> None:
    """The vendor's kernel and a wrong one answer in turn, each under its own name and digest."""
    arguments = subject.tnd()
    expected = reference(arguments)
    wrong, output = simulator.package("wrong-sign"), subject.outputs[0]
    with server(options=packages(mine=wrong)) as (_, client):
        before = client.server_info().operator_packages
        assert [package.name for package in before] == ["built-in", "mine"]
        assert before[1].library_file == str(Path(wrong, LIBRARY).resolve())
        assert len(before[1].digest) == 64
        for _ in range(2):
            right = subject.call(client, **arguments, operator_package="built-in")
            assert_same_bits(right, expected)
            assert right.execution.operator_package.known_answer == "PASSED"
            mine = subject.call(client, **arguments, operator_package="mine")
            assert not np.array_equal(getattr(mine, output), expected[output])
            package = mine.execution.operator_package
            assert (package.name, package.known_answer) == ("mine", "FAILED")
            assert package.digest == before[1].digest
        after = client.server_info()
        assert [package.known_answer for package in after.operator_packages] == ["PASSED", "FAILED"]
        assert after.workers[0].operator_package == "mine"


@pytest.mark.parametrize("subject", HEAVY)
def test_changed_files_are_another_worker(tmp_path: Path, subject: Subject) -> None:
    """A developer builds again: the next request runs the new build, and its digest says so."""
    arguments = subject.tnd()
    folder = copy_of("wrong-sign", tmp_path / "mine")
    with server(options=packages(mine=str(folder))) as (_, client):

        def call() -> Any:
            return subject.call(client, **arguments, operator_package="mine")

        first = call()
        copy_of("good", folder)
        assert client.server_info().operator_packages[1].digest != (
            first.execution.operator_package.digest
        )
        second = call()
        assert_same_bits(second, reference(arguments))
        package = second.execution.operator_package
        assert package.known_answer == "PASSED"
        assert package.digest != first.execution.operator_package.digest
        # a build may change its kernels and leave the library as it is
        restarts = client.server_info().workers[0].restart_count
        (folder / "op_impl").mkdir()
        (folder / "op_impl" / "kernel.o").write_bytes(b"new")
        assert_same_bits(call(), reference(arguments))
        assert client.server_info().workers[0].restart_count == restarts + 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [("shim", "SIGSEGV|SIGABRT|exited with status"), ("no-symbol", "{}")],
)
def test_a_package_that_cannot_be_served_says_why_and_harms_nobody(
    name: str, words: str, subject: Subject
) -> None:
    """Its requests fail with the reason; the vendor's package is served on, the server healthy."""
    arguments = subject.tnd()
    with server(options=packages(broken=simulator.package(name))) as (_, client):
        with pytest.raises(errors.OperatorError, match=words.format(subject.stages[1])) as caught:
            subject.call(client, **arguments, operator_package="broken")
        assert caught.value.reason == "OPERATOR_PACKAGE_NOT_READY"
        assert caught.value.argument == "operator_package"
        assert_same_bits(subject.call(client, **arguments), reference(arguments))
        info = client.server_info()
        assert info.serving
        assert "broken" in info.workers[0].trouble
        assert not info.workers[0].quarantined


@pytest.mark.full
def test_requests_for_one_package_are_grouped_fairly(subject: Subject) -> None:
    """Two packages asked for in turns by many: all served, with far fewer changes than requests."""
    arguments = subject.tnd()
    expected = reference(arguments)
    options = packages(mine=simulator.package("good"))
    with server(options=options) as (_, client), ThreadPoolExecutor(16) as pool:

        def call(turn: int) -> Any:
            name = ("built-in", "mine")[turn % 2]
            found = subject.call(client, **arguments, operator_package=name)
            assert_same_bits(found, expected)
            assert found.execution.operator_package.name == name
            return found

        assert len(list(pool.map(call, range(120)))) == 120
        assert client.server_info().workers[0].restart_count < 30


@pytest.mark.parametrize("subject", HEAVY)
def test_devices_share_the_work_of_two_packages(subject: Subject) -> None:
    """With two devices each package finds one, and neither has to wait for a change for long."""
    arguments = subject.tnd()
    options = packages(mine=simulator.package("good"))
    with server(options=options, workers=2) as (_, client), ThreadPoolExecutor(8) as pool:

        def call(turn: int) -> str:
            name = ("built-in", "mine")[turn % 2]
            return subject.call(client, **arguments, operator_package=name).execution.worker

        used = list(pool.map(call, range(80)))
        assert set(used) == {"worker-0", "worker-1"}
        served = {worker.operator_package for worker in client.server_info().workers}
        assert served == {"built-in", "mine"}


@pytest.mark.parametrize("subject", HEAVY)
def test_a_plan_asks_the_devices_own_first_stage(tmp_path: Path, subject: Subject) -> None:
    """The device's workspace stands beside the contract's bound, and no executor is leaked."""
    counters = tmp_path / "counters-%d"
    with server(workspace="+4096", counters=str(counters)) as (_, client):
        arguments = subject.tnd()
        for _ in range(50):
            plan = subject.plan(client, **arguments)
        assert plan.device_workspace_bytes == plan.workspace_bytes + 4096
        assert plan.operator_package is not None
        assert plan.operator_package.known_answer == "PASSED"
        assert_same_bits(subject.call(client, **arguments), reference(arguments))
        (file,) = tmp_path.glob("counters-*")
        found = read_counters(file)
        assert found["live.executors"] == 0
        assert found["live.tensors"] == 0
        assert found["violations"] == 0


@pytest.mark.parametrize("subject", HEAVY)
def test_a_plan_that_the_device_refuses_says_so(subject: Subject) -> None:
    """Stage one's own status, with the contract passed."""
    faults = f"{subject.stages[0]}:2:561003"
    with server(faults) as (_, client):
        with pytest.raises(errors.OperatorError, match="561003") as caught:
            subject.plan(client, **subject.tnd())
        assert caught.value.aclnn_status == 561003
        assert subject.plan(client, **subject.tnd()).device_workspace_bytes is not None


@pytest.mark.parametrize("subject", HEAVY)
def test_workers_are_recycled_between_requests(tmp_path: Path, subject: Subject) -> None:
    """After so many requests another process takes over; the old one leaves nothing behind."""
    arguments = subject.tnd()
    expected = reference(arguments)
    options = {"recycle-count": "5"}
    report = str(tmp_path / "report-%d.json")
    with server(options=options, report=report) as (_, client), ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: subject.call(client, **arguments), range(40)):
            assert_same_bits(found, expected)
        assert eventually(lambda: client.server_info().workers[0].ready)
        assert 5 <= client.server_info().workers[0].restart_count <= 8
    for file in tmp_path.glob("report-*"):
        found = json.loads(file.read_text())
        assert found["finalised"]
        assert found["violations"] == []
        assert not any(found["live"].values()), found["live"]


@pytest.mark.parametrize("subject", HEAVY)
def test_files_that_always_change_keep_nothing_from_being_served(
    tmp_path: Path, subject: Subject
) -> None:
    """A kernel may write into its own folder: each request then has a new worker, and is served."""
    arguments = subject.tnd()
    folder = copy_of("good", tmp_path / "mine")
    stop = threading.Event()

    def write() -> None:
        for turn in itertools.count():
            if stop.wait(0.01):
                return
            (folder / "log").write_text(str(turn))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with server(options=packages(mine=str(folder))) as (_, client):
            for _ in range(3):
                found = subject.call(client, **arguments, operator_package="mine")
                assert_same_bits(found, reference(arguments))
    finally:
        stop.set()
        writer.join()
