"""The manifests: valid in two versions of Kubernetes, and true to one another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from opferry_server.config import load_config
from tests.deploy.rendering import (
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    gathered,
    jobs_of_alerts,
    of_kind,
    pod_specs,
    read_all,
    rendered,
)
from tests.packaging.project import project, tomllib

SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = ("1.30", "1.37")

BROUGHT = {
    ("Secret", "opferry-outside"),
    ("Secret", "opferry-envoy-inside"),
    ("Secret", "opferry-servers-inside"),
    ("Secret", "opferry-tokens"),
    ("ConfigMap", "opferry-users-authorities"),
    ("ConfigMap", "opferry-inside-authorities"),
}
"""What the farm's owner makes, and the manifests only name."""

overlays = pytest.mark.parametrize("overlay", OVERLAYS)


def resources_of(overlay: str, by: str) -> list[dict[str, Any]]:
    """Return an overlay's resources, by kubectl or gathered by ourselves."""
    if by == "kubectl":
        return rendered(overlay)
    return [resource for _, resource in gathered(KUBERNETES / overlay)]


both_ways = pytest.mark.parametrize("by", ["kubectl", "ourselves"])


@pytest.mark.parametrize("version", VERSIONS)
@overlays
def test_resources_are_valid(overlay: str, version: str) -> None:
    """Strictly, in two versions; custom resources by our own trimmed schemas."""
    validator = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate, of the extra dev"
    )
    jsonschema = pytest.importorskip("jsonschema")
    custom = []
    for resource in rendered(overlay):
        path = SCHEMAS / f"{resource['kind'].lower()}.json"
        if path.exists():
            custom.append(resource["kind"])
            jsonschema.validate(resource, json.loads(path.read_text()))
        else:
            validator.validate(resource, version, strict=True)
    assert custom == ([] if overlay == "base" else ["ServiceMonitor"] * 2)


def test_every_file_is_used() -> None:
    """Each YAML file is listed by some kustomization, or a patch of one."""
    used = set()
    for overlay in OVERLAYS:
        used |= {path for path, _ in gathered(KUBERNETES / overlay)}
    for path in KUBERNETES.rglob("kustomization.yaml"):
        (listed,) = read_all(path.read_text())
        used.add(path)
        used |= {path.parent / patch["path"] for patch in listed.get("patches", ())}
    assert set(KUBERNETES.rglob("*.yaml")) - used == set()


@both_ways
@overlays
def test_what_pods_refer_to_is_there(overlay: str, by: str) -> None:
    """Volumes, mounts, probes' ports, configuration and secrets: all have their other end."""
    resources = resources_of(overlay, by)
    there = {(item["kind"], item["metadata"]["name"]) for item in resources} | BROUGHT
    found = set()
    for name, spec in pod_specs(resources):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in spec["volumes"]:
            if "secret" in volume:
                found.add(("Secret", volume["secret"]["secretName"]))
            if "configMap" in volume:
                found.add(("ConfigMap", volume["configMap"]["name"]))
        for container in spec["containers"]:
            mounted = [mount["name"] for mount in container["volumeMounts"]]
            assert set(mounted) == set(volumes), name
            ports = {port["name"] for port in container["ports"]}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container[kind]
                assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports
    assert found <= there
    assert found >= BROUGHT


@both_ways
@overlays
def test_services_budgets_and_policies_select_pods(overlay: str, by: str) -> None:
    """Every selector finds pods, every service's port is one of theirs, and none is without."""
    resources = resources_of(overlay, by)
    templates = {
        item["metadata"]["name"]: item["spec"]["template"]
        for item in resources
        if "template" in item.get("spec", {})
    }

    def selected(labels: dict[str, str]) -> list[dict[str, Any]]:
        return [t for t in templates.values() if labels.items() <= t["metadata"]["labels"].items()]

    for name, service in of_kind(resources, "Service").items():
        (template,) = selected(service["spec"]["selector"])
        ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, name
    for kind, where in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        found = [
            template
            for item in of_kind(resources, kind).values()
            for template in selected(item["spec"][where]["matchLabels"])
        ]
        assert len(found) == len(templates), kind
    for item in resources:
        if "template" in item.get("spec", {}):
            assert selected(item["spec"]["selector"]["matchLabels"])
    if overlay != "base":
        services, jobs = of_kind(resources, "Service").values(), []
        for monitor in of_kind(resources, "ServiceMonitor").values():
            labels = monitor["spec"]["selector"]["matchLabels"].items()
            (service,) = [s for s in services if labels <= s["metadata"]["labels"].items()]
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
            jobs.append(service["metadata"]["labels"][monitor["spec"]["jobLabel"]])
        assert set(jobs) >= jobs_of_alerts()


@both_ways
@overlays
def test_pods_may_do_little(overlay: str, by: str) -> None:
    """Not root, nothing gained, nothing written but in volumes, no token of the cluster's."""
    for name, spec in pod_specs(resources_of(overlay, by)):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@overlays
def test_no_secret_is_in_the_manifests(overlay: str) -> None:
    """Secrets are named, and never there."""
    resources = resources_of(overlay, "ourselves")
    assert of_kind(resources, "Secret") == {}
    assert not re.search(r"PRIVATE KEY|opf_[A-Za-z0-9_-]{20}", json.dumps(resources))


def test_a_server_is_found_by_its_names() -> None:
    """Envoy and the headless service agree, and the latter lists every server, in any state."""
    resources = resources_of("base", "ourselves")
    service = of_kind(resources, "Service")["opferry-servers"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert of_kind(resources, "StatefulSet")["opferry"]["spec"]["serviceName"] == "opferry-servers"
    assert of_kind(resources, "Service")["opferry"]["spec"].get("clusterIP") is None
    (cluster,) = read_all((DEPLOY / "envoy" / "servers.yaml").read_text())[0]["resources"]
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    where = endpoint["endpoint"]["address"]["socket_address"]
    assert where == {"address": "opferry-servers", "port_value": 50051}


def test_the_ascend_overlay_runs_a_worker_for_each_device() -> None:
    """Devices, workers and what clients may ask for are said once, and agree."""
    resources = rendered("overlays/ascend")
    spec = of_kind(resources, "StatefulSet")["opferry"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    limits = container["resources"]["limits"]
    assert environment["OPFERRY_WORKERS"] == str(limits["huawei.com/npu"])
    assert container["resources"]["requests"]["huawei.com/npu"] == limits["huawei.com/npu"]
    assert environment["OPFERRY_BACKEND"] == "aclnn"
    assert "OPFERRY_SERVER_ID" in environment
    rules = spec["affinity"]["podAntiAffinity"]
    assert list(rules) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    (text,) = [
        item["data"]["servers.yaml"]
        for item in of_kind(resources, "ConfigMap").values()
        if "servers.yaml" in item["data"] and "envoy.yaml" in item["data"]
    ]
    (cluster,) = read_all(text)[0]["resources"]
    (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["metadata"]["filter_metadata"]["envoy.lb"] == {
        "soc": spec["nodeSelector"]["opferry.dev/soc"],
        "cann": "9.0.0",
    }


@overlays
def test_images_are_those_of_this_version(overlay: str) -> None:
    """The server's image has the project's version as its tag."""
    for name, spec in pod_specs(rendered(overlay)):
        if name == "opferry":
            tag = spec["containers"][0]["image"].partition(":")[2]
            assert tag == project()["version"] + ("-npu" if overlay.endswith("ascend") else "")


CONFIGURATION = KUBERNETES / "base" / "server.toml"


def test_the_servers_configuration_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes it, with the variables that the overlay for devices adds."""
    config = load_config(["--config", str(CONFIGURATION)])
    assert not config.insecure
    (patch,) = read_all((KUBERNETES / "overlays" / "ascend" / "devices.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    for item in container["env"]:
        monkeypatch.setenv(item["name"], item["value"])
    with_devices = load_config(["--config", str(CONFIGURATION)])
    assert (with_devices.backend, with_devices.workers) == ("aclnn", 8)


def test_times_and_sizes_of_the_hops_fit() -> None:
    """Whoever kills waits longer than whoever drains, and memory fits."""
    options = tomllib.loads(CONFIGURATION.read_text())
    resources = resources_of("base", "ourselves")
    server = of_kind(resources, "StatefulSet")["opferry"]["spec"]["template"]["spec"]
    assert server["terminationGracePeriodSeconds"] > options["grace_s"] + 20
    limit = _bytes(server["containers"][0]["resources"]["limits"]["memory"])
    kept = _bytes(server["volumes"][-1]["emptyDir"]["sizeLimit"])
    assert limit >= options["limits"]["memory_bytes"] + options["limits"]["kept_bytes"]
    assert kept >= options["limits"]["kept_bytes"]
    envoy = of_kind(resources, "Deployment")["opferry-envoy"]["spec"]["template"]["spec"]
    (container,) = envoy["containers"]
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert envoy["terminationGracePeriodSeconds"] > seconds
    assert container["args"][container["args"].index("--drain-time-s") + 1] == str(seconds)
    heap = re.search(r"max_heap_size_bytes: (\d+)", (DEPLOY / "envoy" / "envoy.yaml").read_text())
    assert heap is not None
    assert _bytes(container["resources"]["limits"]["memory"]) > int(heap[1])


def _bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) * 2**30
