"""Servers and clients that tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import opferry
from opferry.embedded import embedded_server
from tests.support import servers, simulator, torch_npu
from tests.support.calls import EACH, Subject

# Loading the compiled reference costs every worker most of a second. The tests of operators compare
# the two bit by bit, and the conformance tests run on both.
os.environ.setdefault("OPFERRY_REFERENCE_KERNEL", "numpy-blocked")

# A shell's background job ignores Ctrl-C, and so would the programs that tests press it for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example fails because the machine is slow.
settings.register_profile(
    "opferry", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# For suites that run once more, with other releases of what they need.
settings.register_profile("brief", settings.get_profile("opferry"), max_examples=15)
settings.load_profile("opferry")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target", help="run the conformance tests against this server instead of own ones"
    )


@pytest.fixture(autouse=True)
def _nothing_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let no test use the target, the contexts or the token of whoever runs it."""
    own = (
        "TARGET",
        "CONFIG",
        "WORKERS",
        "CONTEXT",
        "TOKEN",
        "TOKEN_FILE",
        "KEEPALIVE_S",
        "METADATA",
    )
    tls = ("AUTHORITIES", "CERTIFICATE", "KEY", "SERVER_NAME")
    for name in (*own, "DEVICE_LEASE", *(f"TLS_{field}" for field in tls)):
        monkeypatch.delenv(f"OPFERRY_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


@pytest.fixture(autouse=True)
def _leases_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests that wait for the end of what is leased not wait for half a minute."""
    monkeypatch.setattr("opferry._lease_connection.IDLE_S", 5.0)


@pytest.fixture(scope="session", params=["embedded", "tcp", "aclnn", "torch-npu"])
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server's address: embedded, started by hand, on the simulator, on torch_npu's stand-in."""
    target = request.config.getoption("--target")
    if target:
        yield target
    elif request.param == "embedded":
        with servers.embedded(options={"reference-kernel": "auto"}) as server:
            yield server.address
    elif request.param == "aclnn":
        environment = simulator.environment()
        with embedded_server(
            backend="aclnn", environment=environment, limits=servers.EARLY_STREAMS
        ) as server:
            yield server.address
    elif request.param == "torch-npu":
        environment = torch_npu.environment()
        with embedded_server(
            backend="torch-npu", environment=environment, limits=servers.EARLY_STREAMS
        ) as server:
            yield server.address
    else:
        with servers.tcp(tmp_path_factory.mktemp("tcp")) as server:
            yield server.address


@pytest.fixture
def any_client(any_server: str) -> Iterator[opferry.Client]:
    """A client of `any_server`."""
    with opferry.connect(any_server, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def cpu_server() -> Iterator[str]:
    """The address of an embedded CPU server."""
    with servers.embedded() as server:
        yield server.address


@pytest.fixture
def client(cpu_server: str) -> Iterator[opferry.Client]:
    """A client of `cpu_server`."""
    with opferry.connect(cpu_server, timeout=60) as connected:
        yield connected


@pytest.fixture(params=EACH)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each operator in turn."""
    found: Subject = request.param
    return found
