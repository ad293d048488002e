"""What a running server counts, as Prometheus reads it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import errors
from opferry.embedded import EmbeddedServer
from opferry.validation import CaseStatus
from opferry_server.seeing.tallies import SECONDS
from tests.support import raw, servers
from tests.support.admin import Admin
from tests.support.calls import tnd
from tests.support.processes import eventually
from tests.support.suites import OPERATOR, TND

ONCE = opferry.RetryConfig(attempts=1)

OF_OPERATOR = {"tenant": "anonymous", "operator": "ApplyRotaryPosEmbGrad"}


@pytest.fixture(scope="module")
def admin() -> Admin:
    return Admin()


@pytest.fixture(scope="module")
def server(admin: Admin) -> Iterator[EmbeddedServer]:
    with servers.embedded("CrashBackend", options=admin.options) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[opferry.Client]:
    with opferry.connect(server.address, retry=ONCE) as found:
        yield found


def test_each_request_is_counted_by_what_came_of_it(admin: Admin, client: opferry.Client) -> None:
    """Calls by message and by shared memory, of many, plans; their bytes and times."""
    count = admin.since_now()
    arguments = tnd(2)
    for _ in range(3):
        client.apply_rotary_pos_emb_grad(**arguments)
    large = tnd(6000)
    client.apply_rotary_pos_emb_grad(**large)
    outcomes = list(client.execute_many(OPERATOR, [inputs(arguments)] * 5, attributes=TND))
    assert [outcome.error for outcome in outcomes] == [None] * 5
    client.plan_apply_rotary_pos_emb_grad(**arguments)

    def requests(**labels: str) -> float:
        return count("opferry_requests_total", **OF_OPERATOR, **labels)

    assert requests(method="ApplyRotaryPosEmbGrad") == 3
    assert requests(method="ExecuteShared") == 1
    assert requests(method="ExecuteMany") == 5
    assert requests(method="Plan") == 1
    assert requests(package="built-in", status="OK", reason="") == 10
    assert count("opferry_streams_total", method="ExecuteMany", status="OK") == 1
    # the backend cpu cannot be asked for plans: that one had neither a place nor a device
    assert count("opferry_request_seconds_count", **OF_OPERATOR) == 9
    assert count("opferry_queue_seconds_count", **OF_OPERATOR) == 9
    assert count("opferry_request_seconds_bucket", le=f"{SECONDS[-1]:.1f}", **OF_OPERATOR) == 9
    assert count("opferry_device_seconds_total", worker="worker-0", **OF_OPERATOR) > 0
    sizes = [sum(array.nbytes for array in inputs(call).values()) for call in (arguments, large)]
    assert count("opferry_bytes_total", direction="in") == 8 * sizes[0] + sizes[1]
    assert count("opferry_bytes_total", direction="in", way="shared_memory") == sizes[1]
    assert count("opferry_bytes_total", direction="out", way="shared_memory") > 0


def inputs(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "layout"}


def test_what_is_refused_before_it_is_a_job_is_counted(
    admin: Admin, server: EmbeddedServer, client: opferry.Client
) -> None:
    """By its reason; a request of no operator has none."""
    count = admin.since_now()
    with pytest.raises(errors.ContractError):
        raw.stream(server.address, [raw.header_frame(raw.small_specs(width=7))])
    refused = {"status": "INVALID_ARGUMENT", "reason": "SHAPE_MISMATCH", "package": ""}
    assert count("opferry_requests_total", method="Execute", **refused, **OF_OPERATOR) == 1
    client.server_info()
    assert count("opferry_requests_total", method="GetServerInfo", operator="") == 1
    assert count("opferry_queue_seconds_count") == 0


def test_faults_are_counted(admin: Admin, client: opferry.Client) -> None:
    """A worker that dies: a fault without a code, a reason, a restart."""
    count = admin.since_now()
    with pytest.raises(errors.DeviceFaultError):
        client.apply_rotary_pos_emb_grad(**tnd(cos=-9))
    assert count("opferry_requests_total", reason="DEVICE_FAULT", status="INTERNAL") == 1
    assert count("opferry_device_faults_total", worker="worker-0", acl_error="") == 1
    assert eventually(lambda: admin.value("opferry_worker_ready", worker="worker-0") == 1, 30)
    assert count("opferry_worker_restarts_total", worker="worker-0") == 1
    assert admin.value("opferry_worker_memory_bytes", device="cpu:0") > 2**20


def test_cases_are_counted(admin: Admin, client: opferry.Client) -> None:
    """Each is a request of its own, with its verdict."""
    count = admin.since_now()
    assert client.validate(OPERATOR, inputs(tnd()), attributes=TND).status is CaseStatus.PASS
    assert count("opferry_requests_total", method="Validate", status="OK", **OF_OPERATOR) == 1
    assert count("opferry_cases_total", verdict="pass", package="built-in") == 1
    assert count("opferry_streams_total", method="Validate") == 1


def test_health_by_http(admin: Admin, server: EmbeddedServer) -> None:
    """The process lives, and serves."""
    assert admin.get("/healthz").text == "alive\n"
    assert (admin.get("/readyz").status, admin.get("/readyz").text) == (200, "serving\n")
    assert admin.value("opferry_serving") == 1
    assert admin.get("/nothing").status == 404
    assert admin.get("/metrics", method="POST").status == 405


def test_another_sites_name_is_refused(admin: Admin, server: EmbeddedServer) -> None:
    """A page from elsewhere whose name leads here, as an attacker's may, sees nothing."""
    assert admin.get("/metrics", Host="evil.example").status == 403
    assert admin.get("/metrics", Host="localhost:9464").status == 200
    assert admin.get("/metrics", Host="[::1]:9464").status == 200


def test_the_queue_is_shown_as_it_is(tmp_path: Path) -> None:
    """Who runs and who waits, and how many may."""
    admin = Admin()
    with (
        servers.embedded(
            "SleepBackend", options=admin.options, limits={"queue_count": 7}
        ) as server,
        opferry.connect(server.address) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        futures = [pool.submit(client.apply_rotary_pos_emb_grad, **tnd(cos=1.0)) for _ in range(3)]

        def inside(state: str) -> float:
            return admin.value("opferry_queue_requests", state=state, tenant="anonymous")

        assert eventually(lambda: inside("running") == 1 and inside("waiting_for_worker") == 2)
        assert admin.value("opferry_worker_running", worker="worker-0") == 1
        assert admin.value("opferry_arena_bytes", state="used") == 3 * 65536
        for future in futures:
            future.result()
        assert admin.value("opferry_queue_requests") == 0
        assert admin.value("opferry_queue_places") == 8
        assert admin.value("opferry_arena_bytes", state="idle") > 0
        assert admin.value("opferry_arena_limit_bytes") == 8 * 2**30
        assert admin.value("opferry_info", backend="cpu", real_device="false") == 1


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_connections_are_counted(tmp_path: Path, kind: str) -> None:
    """Those of TCP, and those of a Unix socket."""
    admin = Admin()
    address = f"unix:{tmp_path}/server" if kind == "unix" else ""
    with servers.tcp(tmp_path, lines=admin.lines, address=address) as server:
        assert eventually(lambda: admin.value("opferry_connections") == 0)
        with opferry.connect(server.address) as one, opferry.connect(server.address) as other:
            one.server_info()
            other.server_info()
            assert admin.value("opferry_connections") in (1, 2)  # clients share connections
        with (
            socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as plain,
        ):
            if kind == "unix":
                plain.connect(f"{tmp_path}/server")
            else:
                plain.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
            assert eventually(lambda: admin.value("opferry_connections") >= 1)
        assert eventually(lambda: admin.value("opferry_connections") == 0)


def test_a_port_that_is_taken_ends_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    """The server says which."""
    admin = Admin()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(admin.address.rpartition(":")[2])))
        taken.listen()
        with (
            pytest.raises(errors.ServerError, match="exit status 1"),
            servers.embedded(options=admin.options),
        ):
            raise AssertionError("it started")
    assert f"cannot listen on {admin.address}" in capfd.readouterr().err
