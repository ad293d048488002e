"""Which ways lead through Envoy, to whom, and which do not."""

from __future__ import annotations

import subprocess
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import opferry
from opferry import wire
from opferry.v1 import operator_service_pb2 as pb
from tests.farm.running import Farm
from tests.support import envoy
from tests.support.calls import tnd
from tests.support.processes import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SOC, CANN = "x-opferry-soc", "x-opferry-cann"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Two servers of different kinds."""
    running = Farm(tmp_path_factory.mktemp("farm"), 2, backend="SleepBackend")
    kinds = [{"soc": "Ascend950PR", "cann": "9.0.0"}, {"soc": "Ascend950DT", "cann": "9.0.0"}]
    running.envoy.set_servers([server.address for server in running.servers], kinds)
    assert eventually(lambda: running.envoy.stats().get("lb_subsets_active", 0) >= 4)
    assert running.all_healthy()
    yield running
    running.close()


@pytest.fixture
def channel(farm: Farm) -> Iterator[grpc.Channel]:
    """A plain channel to Envoy."""
    with grpc.insecure_channel(farm.envoy.address) as opened:
        yield opened


def who(channel: grpc.Channel, *metadata: tuple[str, str]) -> str:
    """Return the id of the server that a request with some metadata reaches."""
    method = wire.methods["GetServerInfo"]
    ask = channel.unary_unary(
        method.path, method.request.SerializeToString, method.response.FromString
    )
    reply: Any = ask(pb.GetServerInfoRequest(), metadata=metadata, timeout=10)
    found: str = reply.server_id
    return found


def test_requests_go_to_the_kind_that_they_ask_for(channel: grpc.Channel) -> None:
    """By system on chip, by CANN, by both; without such metadata to any."""
    assert {who(channel, (SOC, "Ascend950PR")) for _ in range(20)} == {"s1"}
    assert {who(channel, (SOC, "Ascend950DT"), (CANN, "9.0.0")) for _ in range(20)} == {"s2"}
    assert {who(channel, (CANN, "9.0.0")) for _ in range(40)} == {"s1", "s2"}
    assert {who(channel) for _ in range(40)} == {"s1", "s2"}


@pytest.mark.parametrize("wanted", [[(SOC, "Ascend910B")], [(SOC, "Ascend950PR"), (CANN, "8")]])
def test_who_asks_for_what_is_not_there_is_told_so(
    channel: grpc.Channel, wanted: list[tuple[str, str]]
) -> None:
    """UNAVAILABLE, and no other kind of server."""
    with pytest.raises(grpc.RpcError) as caught:
        who(channel, *wanted)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no healthy upstream" in caught.value.details()


def test_one_servers_health_is_not_watched_for_the_farms(channel: grpc.Channel) -> None:
    """Watch is not there, so that no client leaves with one server; Check asks some server."""
    health = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=wire.SERVICE_NAME)
    assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        next(health.Watch(request))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_other_services_are_not_there(channel: grpc.Channel) -> None:
    """What is none of opferry's stops at Envoy."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/other.Service/Method")(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_nothing_is_sent_twice_whatever_a_client_asks_for(farm: Farm) -> None:
    """Envoy's own headers are dropped: a full queue is told once, and counted once."""
    ask = {"x-envoy-retry-on": "5xx,unavailable", "x-envoy-max-retries": "5"}
    with grpc.insecure_channel(farm.envoy.address) as channel:
        before = farm.envoy.stats()["upstream_rq_total"]
        with pytest.raises(grpc.RpcError):
            who(channel, *ask.items(), ("x-envoy-upstream-rq-timeout-ms", "1"), (SOC, "nobody"))
        who(channel, *ask.items(), ("x-envoy-upstream-rq-timeout-ms", "1"))
        after = farm.envoy.stats()
    assert after["upstream_rq_total"] == before + 1
    assert after.get("upstream_rq_retry", 0) == 0
    assert after.get("retry_or_shadow_abandoned", 0) == 0


def test_a_deadline_is_the_callers_own(farm: Farm) -> None:
    """A call longer than Envoy's default of 15 s ends well; one over its deadline ends then."""
    with opferry.connect(farm.envoy.address, timeout=60) as client:
        client.apply_rotary_pos_emb_grad(**tnd(cos=16.0))
        started_s = time.monotonic()
        with pytest.raises(opferry.errors.DeadlineError):
            client.apply_rotary_pos_emb_grad(**tnd(cos=8.0), timeout=1)
        assert time.monotonic() - started_s < 6


def test_others_see_statistics_alone(farm: Farm) -> None:
    """The listener for Prometheus shows two pages of the admin interface, and changes nothing."""
    assert "envoy_cluster_membership_healthy" in farm.envoy.outside_stats("/stats/prometheus")
    assert farm.envoy.outside_stats("/ready").strip() == "LIVE"
    for path in ("/", "/clusters", "/config_dump", "/quitquitquit"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            farm.envoy.outside_stats(path)
        assert caught.value.code == 404
        caught.value.close()


def test_an_envoy_that_ends_lets_requests_end(farm: Farm, tmp_path: Path) -> None:
    """drain.sh waits for a request that runs; then Envoy may be told to end, and is soon."""
    second = envoy.Envoy(tmp_path / "second", [server.address for server in farm.servers])
    told: Counter[str] = Counter()

    def call() -> None:
        with opferry.connect(second.address, timeout=60) as client:
            client.apply_rotary_pos_emb_grad(**tnd(cos=8.0))
            told["done"] += 1

    try:
        thread = threading.Thread(target=call)
        thread.start()
        assert eventually(lambda: "downstream_rq_active: 1" in second.outside_active())
        script = str(envoy.CONFIGURATION / "drain.sh")
        subprocess.run(["bash", script, "60", str(second.admin_port)], check=True, timeout=90)
        # it has waited for the request, and not for its 60 s
        thread.join(5)
        assert told == {"done": 1}
        with (
            pytest.raises(opferry.errors.TransportError),
            opferry.connect(second.address, retry=opferry.RetryConfig(attempts=1)) as client,
        ):
            client.server_info(timeout=5)
    finally:
        second.stop()
    subprocess.run(["bash", script, "60", str(second.admin_port)], check=True, timeout=5)
