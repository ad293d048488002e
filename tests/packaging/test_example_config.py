"""The example configuration file: every option is in it, with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opferry_server.config import ServerConfig, load_config
from tests.packaging.project import tomllib
from tests.support.servers import ROOT

EXAMPLE = ROOT / "deploy" / "opferry-server.toml"

NOT_FOR_A_FILE = {"config", "parent_fd"}
"""The file's own name, and a descriptor that only a parent process knows."""


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The defaults, whatever the environment says."""
    for name in ServerConfig.model_fields:
        monkeypatch.delenv(f"OPFERRY_{name.upper()}", raising=False)
    return load_config([]).model_dump(exclude=NOT_FOR_A_FILE)


def uncommented() -> str:
    """Return the example with all its options in force."""
    return re.sub(r"^#(\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_the_example_changes_nothing(defaults: dict[str, Any]) -> None:
    """A server reads the example as it is, and its options are the defaults."""
    config = load_config(["--config", str(EXAMPLE)])
    assert config.model_dump(exclude=NOT_FOR_A_FILE) == defaults


def test_the_example_names_every_option(defaults: dict[str, Any], tmp_path: Path) -> None:
    """With every line in force each option is named once, and has its default."""
    assert set(ServerConfig.model_fields) - NOT_FOR_A_FILE == set(defaults)
    assert tomllib.loads(uncommented()) == defaults
    path = tmp_path / "all.toml"
    path.write_text(uncommented())
    config = load_config(["--config", str(path)])
    assert config.model_dump(exclude=NOT_FOR_A_FILE) == defaults


def test_the_example_explains_every_option() -> None:
    """Each option has a sentence above it; the options that no file can set are explained too."""
    lines = EXAMPLE.read_text().splitlines()
    options = [index for index, line in enumerate(lines) if re.match(r"#\w+ = ", line)]
    assert options
    for index in options:
        assert re.match(r"# [A-Z].*\.$", lines[index - 1]), lines[index]
    for name in NOT_FOR_A_FILE:
        assert re.search(rf"^# .*\b{name}\b", EXAMPLE.read_text(), flags=re.MULTILINE)
