"""The supported range: every Python that we name, with the oldest and the newest dependencies."""

from __future__ import annotations

import pytest

from tests.packaging.environments import Environment, Environments, clean_variables, run_checked
from tests.packaging.interpreters import RUNNING, find_interpreter
from tests.packaging.project import floors, python_versions
from tests.support.servers import ROOT

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

UNIT_TESTS = [f"tests/unit/{name}" for name in ("core", "operators", "wire", "validation")]

TOOLS = ["hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist"]
"""What the unit tests import beside the project."""

OLDEST_NUMPY_PYTHONS = ("3.10", "3.11", "3.12")
"""Where the oldest supported numpy is published as a wheel."""


OLDEST = "oldest"
"""The oldest dependencies, with the first Python of those that is here."""

COMBINATIONS = [*python_versions(), OLDEST]
"""Every Python with the newest dependencies, and the oldest dependencies."""


@pytest.fixture(scope="module", params=COMBINATIONS)
def ages_and_environment(
    request: pytest.FixtureRequest, environments: Environments
) -> tuple[str, Environment]:
    """An environment of one combination, and the age of its dependencies."""
    age = OLDEST if request.param == OLDEST else "newest"
    versions = OLDEST_NUMPY_PYTHONS if age == OLDEST else (request.param,)
    version = next(filter(find_interpreter, versions), "")
    interpreter = find_interpreter(version) if version else None
    if interpreter is None:
        pytest.skip(f"there is no python{' or python'.join(versions)} on this machine")
    extras = ("server", "xlsx")
    pins = {**floors()}
    for extra in extras:
        pins |= floors(extra)
    pins = pins if age == OLDEST else {}
    requirements = [*TOOLS, *(f"{name}=={release}" for name, release in pins.items())]
    return age, environments.get(
        *requirements, extra=f"[{','.join(extras)}]", version=version, interpreter=interpreter
    )


@pytest.mark.parametrize(
    "ages_and_environment",
    # with the newest dependencies our own Python runs them anyway
    [combination for combination in COMBINATIONS if combination != RUNNING],
    indirect=True,
)
def test_unit_tests_pass(ages_and_environment: tuple[str, Environment]) -> None:
    """Core, operators, wire and validation pass their unit tests with the installed wheel.

    Each property is tried on few examples: it is the other releases that are new here.
    """
    _, environment = ages_and_environment
    words = ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not full"]
    words += ["--hypothesis-profile", "brief"]
    variables = clean_variables(PYTHONDONTWRITEBYTECODE="1")
    run_checked([environment.python, *words, *UNIT_TESTS], cwd=ROOT, env=variables)


def test_versions(ages_and_environment: tuple[str, Environment]) -> None:
    """The oldest environment holds the floors of pyproject.toml, the newest a later numpy."""
    age, environment = ages_and_environment
    floor = tuple(int(part) for part in floors()["numpy"].split("."))
    found = environment.version("numpy")[: len(floor)]
    assert (found == floor) if age == OLDEST else (found > floor)


def test_a_call_succeeds(ages_and_environment: tuple[str, Environment]) -> None:
    """The SDK and a server of the same environment make a call, and the commands run."""
    _, environment = ages_and_environment
    environment.one_call()
    plan = ("plan", "--grad-query-embed", "2,8,4,64", "--cos", "1,8,1,64", "--json")
    for words in (("--help",), ("info", "--json"), plan):
        said = environment.run("opferry", *words)
        assert said.returncode == 0, said.stderr
