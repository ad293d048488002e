"""Who has no token, a wrong one or another tenant's, gets nothing; and no token is shown."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
import pytest

import opferry
from opferry import aio, errors, wire
from opferry._token import TokenSource
from opferry_server.access import token_command
from opferry_server.access.credentials import Credentials, CredentialsError, new_token
from tests.security.conftest import ONCE, SecureServer
from tests.support import servers
from tests.support.backends import LongErrorBackend
from tests.support.calls import tnd
from tests.support.credentials import TokenFile
from tests.support.processes import eventually

Call = Callable[[opferry.Client], Any]


def test_a_token_says_tenant_and_role(secure: SecureServer) -> None:
    """The server knows both, and tells the caller."""
    for token, tenant, role in (
        (secure.vision, "vision", "user"),
        (secure.viewer, "vision", "viewer"),
        (secure.admin, "ops", "admin"),
    ):
        with secure.connect(token) as client:
            info = client.server_info()
        assert (info.tenant, info.role) == (tenant, role)


def test_the_asynchronous_client_sends_it_too(secure: SecureServer) -> None:
    """Unary calls and streams alike."""

    async def run() -> str:
        async with aio.connect(
            secure.address, token=secure.speech, tls=secure.tls, retry=ONCE
        ) as client:
            outcomes = await client.execute_many(
                "apply_rotary_pos_emb_grad", [_ones()], attributes={"layout": 4}
            )
            (outcome,) = [one async for one in outcomes]
            with pytest.raises(errors.OperatorError):
                outcome.result()
            return (await client.server_info()).tenant

    assert asyncio.run(run()) == "speech"


def test_no_call_is_served_without_a_token(secure: SecureServer) -> None:
    """Every method of the service refuses, streams at once, before it reads anything."""
    with grpc.secure_channel(
        secure.address, grpc.ssl_channel_credentials(secure.authority.file.read_bytes())
    ) as channel:
        for method in (*wire.methods.values(), *wire.farm_methods.values()):
            # on the wire a unary call is a stream with one message
            call = channel.stream_unary(method.path)
            with pytest.raises(grpc.RpcError) as caught:
                call(iter(() if method.streaming else (b"",)), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.name


def test_errors_say_what_to_do(secure: SecureServer, call: Call) -> None:
    """No token, an unknown one, an expired one, one for looking: an AccessError each."""
    for token, words in (
        (None, "there are no credentials; send a token"),
        (new_token(), "the token is not known"),
        (secure.vision[:-1], "the token is not known"),
        (secure.expired, "the token 'old' expired at 2026-01-01"),
    ):
        with (
            secure.connect(token) as client,
            pytest.raises(errors.AccessError, match=words) as caught,
        ):
            call(client)
        assert caught.value.reason == "UNAUTHENTICATED"
        assert not caught.value.may_retry
    with secure.connect(secure.viewer) as client:
        with pytest.raises(errors.AccessError, match="role is viewer; this takes the role user"):
            call(client)
        assert client.server_info().serving


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer a b", "BearerX"]
)
def test_malformed_headers_are_refused(secure: SecureServer, value: str) -> None:
    """Whatever is no token is nobody's."""
    assert _status(secure, (("authorization", value),)) is grpc.StatusCode.UNAUTHENTICATED


def test_two_tokens_are_none(secure: SecureServer) -> None:
    """Nobody chooses which of two counts."""
    header = ("authorization", f"Bearer {secure.vision}")
    assert _status(secure, (header,)) is None
    assert _status(secure, (header, header)) is grpc.StatusCode.UNAUTHENTICATED


def test_the_forwarded_certificate_of_anybody_is_not_believed(secure: SecureServer) -> None:
    """A header that only proxies may send is no credential."""
    forged = (("x-forwarded-client-cert", 'Subject="CN=vision-ci";DNS=vision'),)
    assert _status(secure, forged) is grpc.StatusCode.UNAUTHENTICATED


def test_error_texts_belong_to_the_tenant(secure: SecureServer, call: Call) -> None:
    """Another tenant is told the same as of a request that never was; an admin sees all."""
    with secure.connect(secure.vision) as client:
        with pytest.raises(errors.OperatorError) as caught:
            call(client)
        request_id = caught.value.request_id
        assert client.error_text(request_id) == LongErrorBackend.TEXT
    with secure.connect(secure.speech) as other:
        with pytest.raises(errors.RequestError) as refused:
            other.error_text(request_id)
        with pytest.raises(errors.RequestError) as unknown:
            other.error_text("never-was")
    assert refused.value.reason == "ERROR_TEXT_UNKNOWN"
    assert refused.value.message.replace(request_id, "never-was") == unknown.value.message
    for token in (secure.admin, secure.viewer):
        with secure.connect(token) as client:
            assert client.error_text(request_id) == LongErrorBackend.TEXT


def test_the_file_of_tokens_is_read_again(tmp_path: Path) -> None:
    """A new token is good and a deleted one refused without a restart; a broken file is logged."""
    tokens = TokenFile(tmp_path / "tokens.toml")
    first = tokens.add("vision")
    with (
        servers.tcp(tmp_path, lines=tokens.lines, credentials={"token": first}) as server,
        opferry.connect(server.address, token=first, retry=ONCE) as client,
    ):
        second = tokens.add("speech")
        with opferry.connect(server.address, token=second, retry=ONCE) as other:
            assert eventually(lambda: _is_let_in(other))
            tokens.path.write_text(f'[[tokens]]\nname = "{first}\n')
            assert eventually(lambda: '"not read"' in server.log.read_text())
            assert first not in server.log.read_text()
            assert _is_let_in(client)
            tokens.clear()
            assert eventually(lambda: not _is_let_in(client))
            third = tokens.add("vision")
            os.kill(server.pid, 1)
            with opferry.connect(server.address, token=third, retry=ONCE) as new:
                assert eventually(lambda: _is_let_in(new))
            assert not _is_let_in(other)
        assert server.stop() == 0


def test_a_token_that_cannot_be_read_is_said_to_be_so(
    secure: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By calls and streams alike."""
    inputs = {name: value for name, value in tnd().items() if name != "layout"}
    file = tmp_path / "token"
    file.write_text(secure.vision)
    monkeypatch.setenv("OPFERRY_TOKEN_FILE", str(file))
    monkeypatch.setattr("opferry._token.LOOK_AGAIN_S", 0.0)
    with secure.connect() as client:
        client.server_info()
        file.unlink()
        (tmp_path / "token").mkdir()

        def many() -> None:
            (outcome,) = client.execute_many(
                "ApplyRotaryPosEmbGrad", [inputs], attributes={"layout": 4}
            )
            outcome.result()

        def lease() -> None:
            with client.lease_device(1):
                pass

        for ask in (client.server_info, many, lease):
            with pytest.raises(errors.AccessError, match="token"):
                ask()


def test_a_token_is_shown_nowhere(secure: SecureServer, call: Call) -> None:
    """Neither in errors and their causes, nor in reprs, copies or the server's log."""
    hidden = [secure.vision, secure.expired, wrong := new_token()]
    shown = []
    for token in hidden:
        with secure.connect(token) as client:
            shown += [
                repr(client),
                repr(client.config),
                str(asdict(client.config)),
                str(vars(client)),
            ]
            with pytest.raises(errors.OpFerryError) as caught:
                call(client)
            shown += traceback.format_exception(caught.value)
            shown += [repr(pickle.dumps(caught.value)), str(vars(caught.value))]
    with pytest.raises(errors.RequestError) as bad:
        opferry.connect("127.0.0.1:1", token=f"{wrong}\n")
    with pytest.raises(errors.RequestError, match="would travel in clear") as clear:
        opferry.connect("farm.example:1", token=wrong)
    with pytest.raises(errors.TransportError) as nobody:
        opferry.connect(f"127.0.0.1:{servers.free_port()}", token=wrong, retry=ONCE).server_info(
            timeout=5
        )
    shown += [text for error in (bad, clear, nobody) for text in _whole(error.value)]
    with pytest.raises(TypeError, match="not to be pickled"):
        pickle.dumps(TokenSource(wrong))
    command = Path(f"/proc/{secure.pid}/cmdline").read_bytes().decode()
    shown += [secure.log.read_text(), command]
    for token in hidden:
        bare = token.removeprefix("opf_")
        assert not any(bare in text for text in shown)


def test_the_command_prints_a_token_that_a_server_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, to stdout; the file has its SHA-256, and is appended to as a whole."""
    file = tmp_path / "tokens.toml"
    done = _run("token", "--tenant", "vision", "--append", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    admin = ["--tenant", "ops", "--role", "admin", "--name", "Jo", "--expires", "90d"]
    assert token_command.main([*admin, "--append", str(file)]) == 0
    tokens = [done.stdout.strip(), capsys.readouterr().out.strip()]
    assert file.stat().st_mode & 0o777 == 0o600
    assert not any(token in file.read_text() for token in tokens)
    found = [Credentials.read(file.read_text()).of_token(token) for token in tokens]
    assert [(who.tenant, who.role.word) for who in found] == [("vision", "user"), ("ops", "admin")]
    assert token_command.main(["--tenant", "speech"]) == 0
    alone = capsys.readouterr()
    assert re.fullmatch(r"opf_[A-Za-z0-9_-]{43}\n", alone.out)
    assert "[[tokens]]" in alone.err
    assert alone.out.strip() not in alone.err
    file.write_text("no TOML")
    assert token_command.main(["--tenant", "speech", "--append", str(file)]) == 1
    assert file.read_text() == "no TOML"
    for wrong in (["--tenant", "a b"], ["--tenant", "a", "--expires", "soon"], []):
        with pytest.raises(SystemExit, match="2"):
            token_command.main(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokens = 3", "begin each with"),
        ("[[tokens]]\nname = 'a'\ntenant = 'a'\nrole = 'root'\nsha256 = 'x'", "the role must be"),
        ("[[tokens]]\nname = 'a'\ntenant = 'a'\nrole = 'user'\nsha256 = 'x'", "64 lower case"),
        ("[[tokens]]\nname = 'a'\ntenant = '../a'\nrole = 'user'", "the tenant must be"),
        ("[[tokens]]\ntoken = 'a'", "there is no field 'token'"),
        ("[[certificates]]\nname = 'a'\ntenant = 'a'", "the role must be"),
        ("[people]", "there is no table 'people'"),
        ("[[tokens]", "it is no TOML at line 1, column"),
    ],
)
def test_a_wrong_file_is_refused(text: str, words: str) -> None:
    """With the place, and what is allowed."""
    with pytest.raises(CredentialsError, match=words):
        Credentials.read(text)


def test_a_missing_file_ends_the_start() -> None:
    """Nobody is let in by a mistake in a path."""
    done = _run("--address", "127.0.0.1:0", "--auth.tokens", "/nowhere/tokens.toml")
    assert done.returncode == 1
    assert "/nowhere/tokens.toml: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_token_of_a_file_is_read_again(secure: SecureServer, tmp_path: Path) -> None:
    """A mounted secret that changes is used from then on; what is none is named, not shown."""
    file = tmp_path / "token"
    file.write_text(f"{secure.vision}\n")
    os.environ["OPFERRY_TOKEN_FILE"] = str(file)
    try:
        client = secure.connect()
    finally:
        del os.environ["OPFERRY_TOKEN_FILE"]
    with client:
        assert client.server_info().tenant == "vision"
        file.write_text(f"{secure.speech}\n")
        assert eventually(lambda: client.server_info().tenant == "speech")
        file.write_text(f"{secure.speech} {secure.speech}")

        def refused() -> str:
            try:
                client.server_info()
            except errors.AccessError as error:
                return str(error)
            return ""

        assert eventually(lambda: "must have one token" in refused())
        assert secure.speech not in refused()


def _ones() -> dict[str, Any]:
    import numpy as np

    names = ("grad_query_embed", "grad_key_embed", "cos", "sin")
    return {name: np.ones((2, 1, 8), np.float32) for name in names}


def _status(secure: SecureServer, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode | None:
    with grpc.secure_channel(
        secure.address, grpc.ssl_channel_credentials(secure.authority.file.read_bytes())
    ) as channel:
        try:
            channel.unary_unary(wire.methods["GetServerInfo"].path)(
                b"", timeout=10, metadata=metadata
            )
        except grpc.RpcError as error:
            return error.code()
        return None


def _is_let_in(client: opferry.Client) -> bool:
    try:
        client.server_info(timeout=10)
    except errors.AccessError:
        return False
    return True


def _whole(error: BaseException) -> list[str]:
    return [*traceback.format_exception(error), repr(error), str(vars(error))]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opferry_server", *words],
        capture_output=True,
        text=True,
        timeout=100,
    )
