"""The farm of one lab host: what it names is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendering import (
    DEPLOY,
    KUBERNETES,
    compose_services,
    jobs_of_alerts,
    read_all,
)
from tests.packaging.dockerfile import read_dockerfile
from tests.packaging.project import project
from tests.support.servers import ROOT

FOLDER = DEPLOY / "compose"

BROUGHT = ("certificates", "tokens.toml")
"""What the owner of the host makes."""


def test_files_and_volumes_are_there() -> None:
    """Every path on the host is one of ours, or of those that the owner makes."""
    (document,) = read_all((FOLDER / "compose.yaml").read_text())
    for service in compose_services().values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                name = source.removeprefix("./")
                if name.partition("/")[0] not in BROUGHT:
                    assert (FOLDER / source).exists(), source
            else:
                assert source in document["volumes"]
    used = [v for service in compose_services().values() for v in service["volumes"]]
    assert len(used) == len(set(used))


def test_builds_name_targets_of_the_dockerfile() -> None:
    """And tag what they make with the project's version."""
    targets = {stage.name for stage in read_dockerfile((ROOT / "Dockerfile").read_text())}
    for name in ("compose.yaml", "devices.yaml"):
        server = compose_services(name)["server"]
        assert (FOLDER / server["build"]["context"]).resolve() == ROOT
        assert server["build"]["target"] in targets
        assert server["image"].startswith(f"opferry-server:{project()['version']}")


def test_only_envoy_can_be_reached() -> None:
    """Grafana, which has a login of its own, from the host itself."""
    (document,) = read_all((FOLDER / "compose.yaml").read_text())
    assert document["networks"]["inside"]["internal"] is True
    ports = {name: service.get("ports", []) for name, service in compose_services().items()}
    assert ports.pop("envoy") == ["50051:50051"]
    assert [port for some in ports.values() for port in some if "127.0.0.1:" not in port] == []
    assert compose_services()["server"]["networks"] == {"inside": {"aliases": ["opferry-servers"]}}


def test_services_may_do_little() -> None:
    """Read-only, without capabilities, started again."""
    for service in compose_services().values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["restart"] == "unless-stopped"


def test_the_health_check_is_one_line_of_python() -> None:
    """What asks the admin port compiles, and asks the port that the configuration names."""
    (_, program, flag, code) = compose_services()["server"]["healthcheck"]["test"]
    assert (program, flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")
    port = re.findall(r"^admin_address = \"0.0.0.0:(\d+)\"", configuration(), re.M)
    assert f":{port[0]}/readyz" in code


def test_prometheus_finds_the_ports() -> None:
    """Targets are the services' names, with the ports of their configuration."""
    (document,) = read_all((FOLDER / "prometheus.yaml").read_text())
    server, envoy = document["scrape_configs"]
    (found,) = server["dns_sd_configs"]
    assert f':{found["port"]}"' in configuration()
    assert found["names"] == compose_services()["server"]["networks"]["inside"]["aliases"]
    assert envoy["static_configs"] == [{"targets": ["envoy:9902"]}]
    assert "port_value: 9902" in (DEPLOY / "envoy" / "envoy.yaml").read_text()
    assert {job["job_name"] for job in document["scrape_configs"]} >= jobs_of_alerts()


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """With the alerts, as they are mounted."""
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool on this machine")
    text = (FOLDER / "prometheus.yaml").read_text()
    place = next(v for v in compose_services()["prometheus"]["volumes"] if "../prometheus" in v)
    source, target, _ = place.split(":")
    path = tmp_path / "prometheus.yaml"
    path.write_text(text.replace(target, str((FOLDER / source).resolve())))
    command = ["promtool", "check", "config", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout + done.stderr


def configuration() -> str:
    """Return the servers' configuration, which is that of the cluster."""
    path: Path = KUBERNETES / "base" / "server.toml"
    assert f"../k8s/base/{path.name}:" in str(compose_services()["server"]["volumes"])
    return path.read_text()
