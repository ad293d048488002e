"""The commands that the documents show work."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opferry.embedded import embedded_server
from opferry_server.config import load_config
from tests.docs.reading import DOCUMENTS, commands
from tests.support import simulator
from tests.support.servers import ROOT

SHOWN_ADDRESS = "127.0.0.1:50051"

RECORDED = "opferry validate -i examples/rotary_cases.csv -o results.csv --seed 7"
"""The run that `--resume`, `opferry report` and `opferry diff` in the documents are about."""

COMMANDS = list(dict.fromkeys(line for path in DOCUMENTS for line in commands(path)))


def of_program(*names: str) -> list[str]:
    """Return the commands of some programs, wherever they are installed."""
    return [line for line in COMMANDS if Path(line.split()[0]).name in names]


@pytest.fixture(scope="module")
def recorded(cpu_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the run that the documents go on with, report and compare."""
    path = tmp_path_factory.mktemp("recorded")
    (path / "examples").symlink_to(ROOT / "examples")
    words = shlex.split(RECORDED)[1:]
    run([sys.executable, "-m", "opferry.cli", *words], path, OPFERRY_TARGET=cpu_server)
    return path


@pytest.fixture
def folder(tmp_path: Path, recorded: Path) -> Path:
    """A folder that looks like a checkout, with the input of `opferry run` and a run's results."""
    for name in ("examples", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("results.csv", "results.jsonl"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    heads = {"grad_query_embed": 8, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 8, "key": 2}
    random = np.random.default_rng(0)
    arrays = {name: random.random((2, 8, n, 64), np.float32) for name, n in heads.items()}
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    return tmp_path


def run(words: list[str], folder: Path, **environment: str) -> str:
    """Run a command in a folder, as in an activated environment; return what it says on stdout."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_program_is_known() -> None:
    """No command is shown of which these tests do not know how to try it."""
    others = set(COMMANDS).difference(of_program("opferry", "opferry-server", "buf", "python"))
    assert {line.split()[0] for line in others} == {"make", "pip", ".", "python3", "venv/bin/pip"}


IN_A_PACKAGE = [line for line in of_program("opferry") if "--operator-package" in line]


@pytest.fixture(scope="module")
def packaged_server() -> Iterator[str]:
    """The address of a server on the simulator that has the package of the documents."""
    options = {"packages": f"mine={simulator.package('good')}"}
    environment = simulator.environment()
    with embedded_server(backend="aclnn", options=options, environment=environment) as server:
        yield server.address


@pytest.mark.parametrize("line", IN_A_PACKAGE)
def test_commands_that_choose_a_package(packaged_server: str, folder: Path, line: str) -> None:
    """The report names the package, its library and its digest."""
    words = shlex.split(line)[1:]
    target = {"OPFERRY_TARGET": packaged_server}
    said = run([sys.executable, "-m", "opferry.cli", *words], folder, **target)
    assert f"operator package {words[-1]}, /" in said
    assert "SHA-256 " in said


@pytest.mark.parametrize(
    "line", [line for line in of_program("opferry") if line not in IN_A_PACKAGE]
)
def test_commands_of_the_cli(cpu_server: str, folder: Path, line: str) -> None:
    """Each exits with 0 against a running server."""
    words = shlex.split(line.replace(SHOWN_ADDRESS, cpu_server))[1:]
    said = run([sys.executable, "-m", "opferry.cli", *words], folder, OPFERRY_TARGET=cpu_server)
    assert said


@pytest.mark.parametrize("line", of_program("opferry-server"))
def test_commands_of_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Each is a valid configuration."""
    monkeypatch.chdir(folder)
    if "--packages" in line:
        (folder / "build").mkdir()
        (folder / "build" / "my-kernel").symlink_to(simulator.package("good"))
    words = shlex.split(line)[1:]
    backend = words[words.index("--backend") + 1] if "--backend" in words else "cpu"
    assert load_config(words).backend == backend


@pytest.mark.parametrize("line", of_program("buf"))
def test_commands_of_a_generic_client(cpu_server: str, folder: Path, line: str) -> None:
    """Each finds the schema by reflection and gets an answer."""
    program = Path(sys.executable).with_name("buf")
    if not program.exists():
        pytest.skip("buf is not installed beside this Python")
    words = shlex.split(line.replace(SHOWN_ADDRESS, cpu_server))[1:]
    assert run([str(program), *words], folder, no_proxy="127.0.0.1")


PRINTED = {
    "examples/call.py": ["float16 (2, 64, 8, 128) (2, 64, 2, 128) (2, 64, 1, 128) (2, 64, 1, 128)"],
    "examples/call_torch.py": [
        "torch.Size([2, 64, 8, 128]) torch.Size([2, 64, 2, 128]) torch.Size([2, 64, 8, 128])"
    ],
    "examples/validate.py": [
        *(
            start
            for name in ("dq", "dk", "dcos", "dsin")
            for start in (f"{name} PASS", "  [", "  [")
        ),
        "PASS by cpu",
    ],
}
"""How the lines begin that each script prints."""


@pytest.mark.parametrize("line", of_program("python"))
@pytest.mark.parametrize("where", ["running", "embedded"])
def test_the_examples_run(cpu_server: str, folder: Path, line: str, where: str) -> None:
    """Each script prints what it shows, on a server that is named and on one of its own."""
    environment = {"OPFERRY_TARGET": cpu_server} if where == "running" else {}
    words = shlex.split(line)[1:]
    said = run([sys.executable, "-W", "error", *words], folder, **environment).splitlines()
    wanted = PRINTED[words[0]]
    assert [line[: len(start)] for line, start in zip(said, wanted, strict=True)] == wanted
