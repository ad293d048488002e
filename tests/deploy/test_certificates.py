"""The script that makes a lab's certificates."""

from __future__ import annotations

import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from opferry_server.access.tls import ServerTls
from tests.deploy.rendering import DEPLOY, compose_services
from tests.packaging.project import tomllib

CLUSTER_NAME = "opferry-servers.opferry.svc.cluster.local"
"""The headless service's; each pod's is below it."""

NAMES = {
    "outside": ("outside", ["farm.example", "127.0.0.1"]),
    "envoy-inside": ("inside", ["opferry-envoy"]),
    "servers-inside": ("inside", ["opferry-servers", f"opferry-0.{CLUSTER_NAME}"]),
    "direct": ("inside", ["opferry-direct"]),
}
"""Each certificate's authority, and names that it is good for."""


@pytest.mark.parametrize("name", NAMES)
def test_certificates_are_good_for_their_names(certificates: Path, name: str) -> None:
    """By their own authority, and by no other."""
    authority, names = NAMES[name]
    file = certificates / name / "tls.crt"
    for wanted in names:
        kind = "-verify_ip" if wanted[0].isdigit() else "-verify_hostname"
        command = ["openssl", "verify", "-x509_strict", kind, wanted, "-CAfile"]
        for other in ("outside", "users", "inside"):
            by = certificates / f"{other}-authorities" / "ca.crt"
            done = subprocess.run([*command, by, file], capture_output=True)
            assert (done.returncode == 0) is (other == authority), done


def test_keys_are_for_their_owner_alone(certificates: Path) -> None:
    """Nobody else reads one."""
    keys = list(certificates.rglob("*.key"))
    assert len(keys) == len(NAMES) + 3
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)


def test_what_is_there_stays(certificates: Path) -> None:
    """A second run makes what is absent only: a certificate that was deleted is renewed."""
    before = {path: path.read_bytes() for path in certificates.rglob("*") if path.is_file()}
    (certificates / "direct" / "tls.crt").unlink()
    subprocess.run([DEPLOY / "certificates.sh", certificates, "farm.example"], check=True)
    after = {path: path.read_bytes() for path in certificates.rglob("*") if path.is_file()}
    assert set(after) == set(before)
    assert {path.parent.name for path in after if after[path] != before[path]} == {"direct"}


def test_a_server_takes_them(certificates: Path) -> None:
    """Certificate, key and authority, at the places that its configuration names."""
    options = tomllib.loads((DEPLOY / "k8s" / "base" / "server.toml").read_text())["tls"]
    places = {}
    for mount in compose_services()["server"]["volumes"]:
        source, target, _ = mount.split(":")
        places[target] = certificates / Path(source).name
    certificate, key, authorities = (
        places[str(Path(options[name]).parent)] / Path(options[name]).name
        for name in ("certificate", "key", "client_authorities")
    )
    ServerTls(certificate, key, authorities)
    context = ssl.create_default_context(cafile=str(authorities))
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "opferry inside"),),)
