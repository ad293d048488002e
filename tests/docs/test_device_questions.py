"""The commands that operations.md gives for questions to a device, tried on the simulator."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opferry.embedded import embedded_server
from tests.docs.reading import code_spans
from tests.support import simulator
from tests.support.servers import ROOT

SPANS = list(dict.fromkeys(code_spans(ROOT / "docs" / "operations.md")))
COMMANDS = [span for span in SPANS if span.startswith("opferry run ")]
PLANS = [span for span in SPANS if span.startswith("opferry plan ")]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the inputs."""
    folder = tmp_path_factory.mktemp("questions")
    script = ROOT / "examples" / "device_questions.py"
    subprocess.run([sys.executable, script, folder], check=True, timeout=100)
    return folder


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    """The address of a server on the simulator."""
    with embedded_server(backend="aclnn", environment=simulator.environment()) as server:
        yield server.address


def run(line: str, folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opferry.cli", *shlex.split(line)[1:]],
        cwd=folder,
        env={**os.environ, "OPFERRY_TARGET": address},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_every_file_has_a_command() -> None:
    """No question is shown whose command these tests do not know."""
    files = [shlex.split(line)[3] for line in COMMANDS]
    assert files == ["wrong-heads.npz", "sbnd-full-cos.npz", "copies.npz"]


@pytest.mark.parametrize("number", [0, 1])
def test_the_device_is_asked_without_the_contract(
    simulated: str, inputs: Path, number: int
) -> None:
    """What the contract refuses reaches the first stage, and its status reaches the caller."""
    done = run(COMMANDS[number], inputs, simulated)
    assert done.returncode == 2
    assert "GetWorkspaceSize returned 161002" in done.stderr


def test_plans_ask_the_device(simulated: str, inputs: Path) -> None:
    """The workspace of the device's own first stage stands beside the formula's."""
    (line,) = PLANS
    done = run(line.replace("127.0.0.1:50051", simulated), inputs, simulated)
    assert done.returncode == 0
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert found["device_workspace_bytes"] == found["workspace_bytes"] == "33554432"


def test_copies_are_timed(simulated: str, inputs: Path) -> None:
    """The bytes that the document names are those of the reply."""
    done = run(COMMANDS[2], inputs, simulated)
    assert done.returncode == 0
    document = (ROOT / "docs" / "operations.md").read_text()
    for name, count in (("upload_bytes", 83886080), ("download_bytes", 46137344)):
        assert f'"{name}": {count}' in done.stdout
        assert str(count) in document
    assert '"host_to_device_ns"' in done.stdout
