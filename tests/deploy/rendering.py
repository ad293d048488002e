"""What kustomize makes of deploy/k8s: by kubectl where it is, and in part by ourselves anywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "k8s"
OVERLAYS = ("base", "overlays/cpu", "overlays/ascend")


def read_all(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML text; skips the test where there is no PyYAML."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")
    return [document for document in yaml.safe_load_all(text) if document is not None]


@cache
def rendered(overlay: str) -> list[dict[str, Any]]:
    """Return the resources of an overlay; skips the test where there is no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl on this machine")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES / overlay)], capture_output=True, text=True
    )
    if "unknown field" in done.stderr:
        # Debian's kubernetes-client is of 2021
        pytest.skip(f"this kubectl's kustomize is too old: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return read_all(done.stdout)


def gathered(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the resources that a folder's kustomization.yaml lists, with the files they are in.

    Those of its components too; nothing is patched or renamed.
    """
    (listed,) = read_all((folder / "kustomization.yaml").read_text())
    for name in (*listed.get("resources", ()), *listed.get("components", ())):
        path = (folder / name).resolve()
        if path.is_dir():
            yield from gathered(path)
        else:
            for resource in read_all(path.read_text()):
                yield path, resource
    for generator in listed.get("configMapGenerator", ()):
        files = {Path(name).name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"]}
        yield (
            folder / "kustomization.yaml",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        )


def pod_specs(resources: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and pod specification of everything that runs."""
    for resource in resources:
        template = resource.get("spec", {}).get("template")
        if template is not None:
            yield resource["metadata"]["name"], template["spec"]


def of_kind(resources: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the resources of one kind by name."""
    return {item["metadata"]["name"]: item for item in resources if item["kind"] == kind}


def compose_services(name: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    """Return the services of a file of deploy/compose."""
    (document,) = read_all((DEPLOY / "compose" / name).read_text())
    found: dict[str, dict[str, Any]] = document["services"]
    return found


def jobs_of_alerts() -> set[str]:
    """Return the names by which the alerts know what Prometheus watches."""
    found = set(re.findall(r'job="([^"]+)"', (DEPLOY / "prometheus" / "alerts.yaml").read_text()))
    assert found
    return found
