"""What is loaded: neither numpy nor grpc before they are needed.

How long it takes is for benchmarks/import_cost.py to say: no test depends on the machine's speed.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    *("numpy", "grpc", "google.protobuf", "ml_dtypes", "rich", "safetensors", "tenacity"),
    *("jinja2", "plotly"),
)

COMMANDS = (
    *("cancel", "cases", "context", "diff", "info", "lease", "login", "logout"),
    *("plan", "queue", "report", "run", "validate"),
)

REPORT = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after some code."""
    said = subprocess.run(
        [sys.executable, "-c", code + REPORT], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    modules = set(json.loads(said.stdout.splitlines()[-1]))
    assert "sys" in modules
    return modules


def command(*words: str) -> str:
    """Return code that runs the command line as its script does, and stays."""
    return (
        "import sys\n"
        "from opferry.cli.__main__ import main\n"
        f"sys.argv = ['opferry', *{words!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code"
    )


def test_importing_opferry_is_light() -> None:
    """`import opferry` loads neither numpy nor grpc, nor anything else that takes long."""
    assert loaded_by("import opferry").isdisjoint(HEAVY)


def test_heavy_modules_load_when_used() -> None:
    """The first use of a client loads grpc and numpy: the other tests look for the right names."""
    assert {"numpy", "grpc", "google.protobuf", "ml_dtypes"} <= loaded_by(
        "import opferry; opferry.Client"
    )


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((n, "--help") for n in COMMANDS)])
def test_help_is_light(words: tuple[str, ...]) -> None:
    """Help and version load neither numpy nor grpc, nor anything else that takes long."""
    assert loaded_by(command(*words)).isdisjoint(HEAVY)


def test_every_command_is_covered() -> None:
    """The commands whose help is tested are all that there are."""
    from opferry.cli.__main__ import main

    assert tuple(sorted(main.commands)) == COMMANDS
