"""The wheel: what is in it, and that it works where nothing else of this checkout is."""

from __future__ import annotations

import json
import zipfile
from email.parser import Parser
from pathlib import PurePosixPath

import pytest

from tests.packaging.environments import Environment, Environments
from tests.packaging.project import project, tracked_files

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PLAN = ("plan", "--grad-query-embed", "2,8,4,64", "--cos", "1,8,1,64", "--json")


@pytest.fixture(scope="module")
def base(environments: Environments) -> Environment:
    """An environment with the wheel and no extra."""
    return environments.get()


@pytest.fixture(scope="module")
def server(environments: Environments) -> Environment:
    """An environment with the wheel, its extra "server", and a protobuf of the newest major."""
    return environments.get("protobuf>=7", extra="[server]")


@pytest.fixture(scope="module")
def archive(environments: Environments) -> zipfile.ZipFile:
    """The wheel, opened."""
    return zipfile.ZipFile(environments.wheel)


def test_wheel_holds_the_packages_and_nothing_else(archive: zipfile.ZipFile) -> None:
    """Every file of both packages is in the wheel, and beside its metadata nothing else is."""
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = {
        str(PurePosixPath(*PurePosixPath(name).parts[1:]))
        for name in tracked_files()
        if name.startswith(("client/opferry/", "server/opferry_server/"))
    }
    assert tracked <= names
    assert {PurePosixPath(name).parts[0] for name in names} == {"opferry", "opferry_server"}
    assert {"opferry/py.typed", "opferry/v1/operator_service_pb2.pyi"} <= names
    assert not [name for name in names if "test" in name and name != "opferry_server/testing.py"]


def test_wheel_metadata(archive: zipfile.ZipFile) -> None:
    """Version, license, oldest Python and entry points are those of pyproject.toml."""
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == project()["version"]
    assert metadata["License-Expression"] == project()["license"]
    assert metadata["Requires-Python"] == project()["requires-python"]
    assert f"{folder}/licenses/LICENSE" in archive.namelist()
    entry_points = archive.read(f"{folder}/entry_points.txt").decode().split("\n")
    scripts = {f"{name} = {where}" for name, where in project()["scripts"].items()}
    assert scripts <= set(entry_points)
    assert "Tag: py3-none-any" in archive.read(f"{folder}/WHEEL").decode()


def test_base_has_no_server_dependency(base: Environment) -> None:
    """The base alone brings nothing that only the server, a report or a workbook needs."""
    code = "import importlib.util as u, json; print(json.dumps([n for n in {} if u.find_spec(n)]))"
    extra = ["grpc_health", "grpc_reflection", "pydantic_settings", "structlog", "grpc_tools"]
    extra += ["jinja2", "openpyxl", "playwright", "plotly"]
    said = base.run("python", "-c", code.format(extra))
    assert json.loads(said.stdout) == []


def test_base_plans_without_a_server(base: Environment) -> None:
    """The base alone runs `opferry plan`."""
    said = base.run("opferry", *PLAN)
    assert said.returncode == 0, said.stderr
    outputs = json.loads(said.stdout)["outputs"]
    assert outputs["grad_query"] == {"dtype": "float32", "shape": [2, 8, 4, 64]}


@pytest.mark.parametrize("command", ["", "info", "plan", "report", "diff", "run", "validate"])
def test_base_helps(base: Environment, command: str) -> None:
    """The base alone shows the help of every command."""
    said = base.run("opferry", *command.split(), "--help")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("Usage: opferry")


def test_base_calls_a_server(base: Environment, cpu_server: str) -> None:
    """The base alone calls a server of another environment, and its command line describes it."""
    base.one_call(cpu_server)
    said = base.run("opferry", "info", "--target", cpu_server, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["serving"] is True


def test_base_says_that_the_extra_is_missing(base: Environment) -> None:
    """Without the extra a command that needs an embedded server exits 3 and names the extra."""
    said = base.run("opferry", "info")
    assert said.returncode == 3
    assert "pip install '.[server]'" in said.stderr
    assert "Traceback" not in said.stderr


def test_base_server_command_names_the_extra(base: Environment) -> None:
    """Without the extra `opferry-server` says what is missing, and exits 1."""
    said = base.run("opferry-server")
    assert said.returncode == 1
    assert "pip install '.[server]'" in said.stderr
    assert "Traceback" not in said.stderr


def test_base_running_server_names_the_extra(base: Environment) -> None:
    """Without the extra `running_server` can be imported and raises a ServerError that names it."""
    code = (
        "from opferry.errors import ServerError\n"
        "from opferry_server.testing import running_server\n"
        "try:\n"
        "    running_server().__enter__()\n"
        "except ServerError as error:\n"
        "    print(error)\n"
    )
    said = base.run("python", "-c", code)
    assert said.returncode == 0, said.stderr
    assert "'.[server]'" in said.stdout


def test_server_serves(server: Environment) -> None:
    """With the extra `opferry-server` runs, a call gives the right result, and SIGTERM ends it."""
    with server.server() as address:
        server.one_call(address)


def test_server_embedded(server: Environment) -> None:
    """With the extra the command line and `running_server` start servers of their own."""
    said = server.run("opferry", "info", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["backend"] == "cpu"
    server.one_call()


def test_newest_protobuf(server: Environment) -> None:
    """The stubs, made by an older generator, work with the next major of protobuf."""
    assert server.version("protobuf") >= (7,)
    server.one_call()
