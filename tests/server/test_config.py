"""Flags, variables and file say the same things; what is wrong is said in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import opferry
from opferry import errors
from opferry.core.limits import LimitsConfig
from opferry_server.config import ConfigError, load_config
from tests.support import servers


def test_the_defaults_are_loopback_and_one_worker() -> None:
    """Nothing given: one CPU worker on loopback, and the limits that both sides know."""
    config = load_config([])
    assert config.address == "127.0.0.1:50051"
    assert config.backend == "cpu"
    assert config.workers == 1
    assert config.limits_config == LimitsConfig()


def test_three_ways_to_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit and option can be given by flag, variable and file, and means the same."""
    values = {item.name: item.default - 1 for item in fields(LimitsConfig)}
    values["unary_bytes"] -= 2**18
    by_flag = load_config(
        [f"--limits.{name.replace('_', '-')}={value}" for name, value in values.items()]
        + ["--workers", "3", "--grace-s", "2.5"]
    )
    file = tmp_path / "server.toml"
    lines = [f"{name} = {value}" for name, value in values.items()]
    file.write_text("\n".join(["workers = 3", "grace_s = 2.5", "[limits]", *lines]))
    by_file = load_config(["--config", str(file)])
    for name, value in values.items():
        monkeypatch.setenv(f"OPFERRY_LIMITS__{name.upper()}", str(value))
    monkeypatch.setenv("OPFERRY_WORKERS", "3")
    monkeypatch.setenv("OPFERRY_GRACE_S", "2.5")
    by_variable = load_config([])
    assert by_flag.limits_config == LimitsConfig(**values)
    assert by_flag.model_dump() == by_variable.model_dump()
    assert by_flag.limits_config == by_file.limits_config
    assert (by_file.workers, by_file.grace_s) == (3, 2.5)


def test_a_flag_beats_a_variable_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of precedence."""
    file = tmp_path / "server.toml"
    file.write_text("workers = 2\ngrace_s = 2\nlog_level = 'warning'")
    monkeypatch.setenv("OPFERRY_CONFIG", str(file))
    monkeypatch.setenv("OPFERRY_WORKERS", "3")
    monkeypatch.setenv("OPFERRY_GRACE_S", "3")
    config = load_config(["--workers", "4"])
    assert (config.workers, config.grace_s, config.log_level) == (4, 3, "warning")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1", "unix:/tmp/x"]
)
def test_loopback_needs_no_word(address: str) -> None:
    """What only this machine can reach is served as it is."""
    assert load_config(["--address", address]).address == address


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.7:1", "farm.example:1"])
def test_other_addresses_need_insecure(address: str) -> None:
    """What others can reach is refused without credentials unless told so in so many words."""
    with pytest.raises(ConfigError, match="say --insecure"):
        load_config(["--address", address])
    assert load_config(["--address", address, "--insecure"]).insecure


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0"], "workers"),
        (["--workers", "many"], "workers"),
        (["--limits.queue-count", "0"], "limits.queue_count"),
        (["--limits.unary-bytes", "4194304"], "must fit limits.message_bytes"),
        (["--log-level", "loud"], "log_level"),
        (["--config", "/nowhere/server.toml"], "there is no file"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], words: str) -> None:
    """The text names the option."""
    with pytest.raises(ConfigError, match=words):
        load_config(arguments)


def test_users_are_names_or_numbers(tmp_path: Path) -> None:
    """In all three ways, and a name that the host does not know is refused."""
    assert load_config([]).shm_users == []
    assert load_config(["--shm-users", "root,65001"]).shm_users == [0, 65001]
    file = tmp_path / "server.toml"
    file.write_text('shm_users = ["root", 65001]')
    assert load_config(["--config", str(file)]).shm_users == [0, 65001]
    with pytest.raises(ConfigError, match="no user 'nobody-of-that-name'"):
        load_config(["--shm-users", "nobody-of-that-name"])


@pytest.mark.parametrize("content", ["wrokers = 2", "[limits]\nqueue = 3", "workers = ["])
def test_an_unknown_or_broken_line_of_the_file_is_an_error(tmp_path: Path, content: str) -> None:
    """A misspelt key is refused, never ignored."""
    file = tmp_path / "server.toml"
    file.write_text(content)
    with pytest.raises(ConfigError):
        load_config(["--config", str(file)])


def _start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opferry_server", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": servers.PYTHONPATH},
    )


def test_wrong_words_exit_2_with_one_line() -> None:
    """No traceback for a mistake in the configuration."""
    done = _start("--address", "0.0.0.0:0")
    assert done.returncode == 2
    assert done.stderr.startswith("opferry-server: ")
    assert "Traceback" not in done.stderr
    assert _start("--wrokers", "3").returncode == 2


def test_a_backend_that_does_not_open_ends_the_start() -> None:
    """The server says what the backend said, and exits 1."""
    done = _start("--address", "127.0.0.1:0", "--backend", "tests.support.backends:NeverOpens")
    assert done.returncode == 1
    assert "made of cheese" in done.stderr
    done = _start("--address", "127.0.0.1:0", "--backend", "gpu")
    assert done.returncode == 1
    assert "known are cpu" in done.stderr


def test_a_taken_port_ends_the_start() -> None:
    """Two servers never share a port without knowing."""
    with servers.embedded() as server:
        done = _start("--address", server.address)
    assert done.returncode == 1
    assert "cannot listen on" in done.stderr


def test_an_embedded_server_that_cannot_start_says_so() -> None:
    """The one who started it gets an error instead of an address."""
    with (
        pytest.raises(errors.ServerError, match="did not start"),
        servers.embedded("NeverOpens"),
    ):
        pass


def test_a_running_server_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """`running_server` works at the top level of a script, and leaves nothing running."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, opferry\n"
        "from opferry_server.testing import running_server\n"
        "ones = np.ones((2, 1, 8), np.float32)\n"
        "with running_server(workers=2, limits={'queue_count': 3}) as address:\n"
        "    with opferry.connect(address) as client:\n"
        "        dq, dk, dcos, dsin = client.apply_rotary_pos_emb_grad(ones, ones, ones, ones, "
        "layout=4)\n"
        "        info = client.server_info()\n"
        "print(dq.sum(), dcos, len(info.workers), info.limits.queue_count)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "16.0 None 2 3\n"
    assert opferry.Layout.TND == 4
