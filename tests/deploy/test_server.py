"""A server with the configuration of deploy/k8s, on this host's ports and paths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import opferry
from tests.deploy.rendering import KUBERNETES, compose_services
from tests.support.calls import assert_same_bits, reference, tnd
from tests.support.credentials import TokenFile
from tests.support.processes import eventually
from tests.support.servers import START_S, free_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def answers(url: str) -> int:
    """Return the status that a probe gets; 0 without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - our own server
            found: int = reply.status
            return found
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_a_server_runs_as_deployed(certificates: Path, tmp_path: Path) -> None:
    """It gets ready for its probes, takes calls with a certificate and a token, and drains."""
    token = TokenFile(tmp_path / "tokens.toml").add("mine")
    text = (KUBERNETES / "base" / "server.toml").read_text()
    for mount in compose_services()["server"]["volumes"]:
        source, target, _ = mount.split(":")
        if source.startswith("./certificates/"):
            text = text.replace(target, str(certificates / Path(source).name))
    port, admin_port = free_port(), free_port()
    text = text.replace("/etc/opferry/credentials", str(tmp_path))
    text = text.replace("0.0.0.0:50051", f"127.0.0.1:{port}")
    text = text.replace("0.0.0.0:9464", f"127.0.0.1:{admin_port}")
    assert "/etc/" not in text
    (tmp_path / "server.toml").write_text(text)
    command = [sys.executable, "-m", "opferry_server", "--config", str(tmp_path / "server.toml")]
    environment = {**os.environ, "OPFERRY_SERVER_ID": "opferry-0"}
    admin = f"http://127.0.0.1:{admin_port}"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        assert eventually(lambda: answers(f"{admin}/readyz") == 200, START_S), (
            tmp_path / "log"
        ).read_text()
        assert answers(f"{admin}/healthz") == 200
        assert answers(f"{admin}/metrics") == 200
        own = certificates / "direct"
        tls = opferry.TlsConfig(
            authorities=str(certificates / "inside-authorities" / "ca.crt"),
            certificate=str(own / "tls.crt"),
            key=str(own / "tls.key"),
            server_name="opferry-servers",
        )
        with opferry.connect(f"127.0.0.1:{port}", token=token, tls=tls, timeout=60) as client:
            arguments = tnd()
            result = client.apply_rotary_pos_emb_grad(**arguments)
            assert_same_bits(result, reference(arguments))
            assert result.execution.request_id.startswith("opferry-0-")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
