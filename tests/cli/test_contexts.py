"""`opferry login`, `opferry logout` and `opferry context`, and whose token goes where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import opferry
from opferry import errors
from opferry.cli.__main__ import main
from tests.support import servers
from tests.support.credentials import Authority, TokenFile


class Lab:
    """A server with TLS and tokens."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        files = self.authority.issue("127.0.0.1")
        tokens = TokenFile(folder / "tokens.toml")
        self.token = tokens.add("vision")
        self.lines = (*files.lines, *tokens.lines)
        self.address = ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server with TLS and tokens."""
    folder = tmp_path_factory.mktemp("lab")
    made = Lab(folder)
    tls = opferry.TlsConfig(str(made.authority.file))
    with servers.tcp(
        folder, lines=made.lines, credentials={"token": made.token, "tls": tls}
    ) as server:
        made.address = server.address
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's configuration, which is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "opferry"


def _opferry(*words: str, input: str | None = None) -> Result:  # noqa: A002 - click's word
    return CliRunner().invoke(main, words, input=input)


def _login(lab: Lab, *words: str, token: str | None = None) -> Result:
    tls = ("--tls-authorities", str(lab.authority.file))
    return _opferry("login", "--target", lab.address, *tls, *words, input=f"{token or lab.token}\n")


def test_after_login_nothing_need_be_said(lab: Lab, home: Path) -> None:
    """By the command line and the SDK: target, TLS and token are the context's; until logout."""
    done = _login(lab, "--context", "lab")
    assert done.exit_code == 0, done.output
    assert "tenant vision, role user" in done.output
    found = json.loads(_opferry("info", "--json").stdout)
    assert (found["tenant"], found["role"]) == ("vision", "user")
    for client in (opferry.connect(), opferry.connect(context="lab")):
        with client:
            assert client.server_info().tenant == "vision"
    assert (home / "tokens.toml").stat().st_mode & 0o777 == 0o600
    assert lab.token not in (home / "config.toml").read_text()
    assert _opferry("logout").exit_code == 0
    assert lab.token not in (home / "tokens.toml").read_text()
    refused = _opferry("info")
    assert refused.exit_code == 2
    assert "there are no credentials" in refused.output


def test_a_token_that_is_not_known_is_not_kept(lab: Lab, home: Path) -> None:
    """Login asks the server first; --no-check does not."""
    wrong = "opf_wrong-token"
    done = _login(lab, token=wrong)
    assert done.exit_code == 2
    assert "not known" in done.output
    assert not home.exists()
    assert _login(lab, "--no-check", token=wrong).exit_code == 0
    assert wrong in (home / "tokens.toml").read_text()
    broken = _opferry("login", "--no-check", input="two words\n")
    assert broken.exit_code == 2
    assert "two words" not in broken.output


def test_contexts_are_kept_used_and_forgotten(lab: Lab, home: Path) -> None:
    """Add, list, use, show, remove; no output has a token."""
    assert _login(lab, "--context", "lab").exit_code == 0
    given = ("--target", "dns:///farm.example:1", "--tls-authorities", "system")
    added = _opferry("context", "add", "farm", *given, "--server", "a:1", "--server", "b:1")
    assert added.exit_code == 0, added.output
    assert _opferry("context", "add", "farm", "--target", "x:1").exit_code == 2
    listed = _opferry("context", "list").output
    assert listed.splitlines() == [f"* lab  {lab.address}", "  farm  dns:///farm.example:1"]
    assert _opferry("context", "use", "farm").exit_code == 0
    shown = json.loads(_opferry("context", "show").output)
    assert shown["name"] == "farm"
    assert shown["servers"] == ["a:1", "b:1"]
    assert shown["tls"]["authorities"] == ""
    assert shown["has_token"] is False
    assert "token" not in shown
    assert json.loads(_opferry("info", "--context", "lab", "--json").stdout)["tenant"] == "vision"
    everything = (
        _opferry("context", "show", "lab").output + _opferry("context", "list", "--json").output
    )
    assert lab.token not in everything
    assert _opferry("context", "remove", "lab").exit_code == 0
    assert lab.token not in (home / "tokens.toml").read_text()
    unknown = _opferry("info", "--context", "lab")
    assert unknown.exit_code == 2
    assert "there is no context 'lab'; known are: farm" in unknown.output
    assert _opferry("context", "use", "lab").exit_code == 2


def test_a_target_named_nearer_gets_no_token_of_a_context(
    lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names another server does not send it the farm's token."""
    assert _login(lab, "--context", "lab").exit_code == 0

    def config(target: str | None = None, context: str | None = None) -> Any:
        with opferry.connect(target, context=context) as client:
            return client.config

    assert config().token is not None
    assert config("other.example:1").token is None
    assert config("other.example:1").tls is None
    both = config("127.0.0.1:1", "lab")
    assert both.token is not None
    assert both.target == "127.0.0.1:1"
    monkeypatch.setenv("OPFERRY_TARGET", "other.example:1")
    assert config().token is None
    assert config(context="lab").target == lab.address
    monkeypatch.setenv("OPFERRY_CONTEXT", "lab")
    assert config().token is not None
    assert config().target == "other.example:1"
    assert config("else.example:1").token is None


def test_a_file_of_tokens_that_others_can_read_is_not_used(lab: Lab, home: Path) -> None:
    """It says what to do; a broken one is not quoted."""
    assert _login(lab).exit_code == 0
    (home / "tokens.toml").chmod(0o644)
    done = _opferry("info")
    assert done.exit_code == 2
    assert "chmod 600" in done.output
    (home / "tokens.toml").chmod(0o600)
    (home / "tokens.toml").write_text(f"[tokens]\ndefault = {lab.token}")
    done = _opferry("info")
    assert done.exit_code == 2
    assert "log in again" in done.output
    assert lab.token not in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[contexts", "it is no TOML"),
        ("curent = 'a'", "allowed are current and tables"),
        ("[contexts.a]\ntargt = 'a:1'", "allowed are insecure, servers, target, tls"),
        ("[contexts.a]\nservers = []", "it has no target"),
        ("[contexts.a]\ntarget = 'a:1'\nservers = 'b:1'", "servers must be a list"),
        ("[contexts.a]\ntarget = 'a:1'\n[contexts.a.tls]\nca = 'x'", "tls must have"),
    ],
)
def test_a_wrong_file_of_contexts_is_named(home: Path, text: str, words: str) -> None:
    """With the file and what is allowed, and nothing of it is guessed."""
    home.mkdir()
    (home / "config.toml").write_text(text)
    with pytest.raises(errors.RequestError, match=words) as caught:
        opferry.connect()
    assert "config.toml" in str(caught.value)


def test_no_option_takes_a_token() -> None:
    """What is on a command line, `ps` shows; and no help shows one that is set."""
    secret = "opf_never-to-be-seen"  # noqa: S105
    for words in ([], ["login"], ["info"], ["context", "add"], ["context"], ["logout"]):
        text = CliRunner().invoke(main, [*words, "--help"], env={"OPFERRY_TOKEN": secret}).output
        assert "--token " not in text
        assert secret not in text
