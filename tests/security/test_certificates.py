"""Certificates: whom a client believes, whom a server takes, and what a proxy may say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import opferry
from opferry import errors, wire
from opferry_server.access.forwarded import names_of
from opferry_server.access.tls import ServerTls, TlsError
from opferry_server.config import ConfigError, load_config
from tests.security.conftest import ONCE, SecureServer
from tests.support import servers
from tests.support.credentials import Authority, CertificateFiles, TokenFile
from tests.support.processes import eventually

PROXY = "spiffe://farm/envoy"


class MutualServer:
    """A server whose clients must have certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.own = self.authority.issue("127.0.0.1")
        self.tokens = TokenFile(folder / "tokens.toml")
        self.token = self.tokens.add("speech")
        self.tokens.add_certificate("vision-ci", "vision")
        self.tokens.add_certificate("behind.example", "vision", "viewer")
        # were it believed of itself, whoever the proxy lets through would be an admin
        self.tokens.add_certificate("envoy", "ops", "admin")
        self.lines = (
            *self.own.lines,
            f'client_authorities = "{self.authority.file}"',
            'proxies = ["envoy"]',
            *self.tokens.lines,
        )
        self.client = self.authority.issue("ci.example", common_name="vision-ci")
        self.proxy = self.authority.issue("envoy.example", common_name="envoy")
        self.address = ""

    def connect(self, files: CertificateFiles | None, token: str | None = None) -> opferry.Client:
        """Connect with a certificate."""
        return opferry.connect(
            self.address, token=token, tls=tls_of(self.authority, files), retry=ONCE, timeout=20
        )

    def tenant(
        self, files: CertificateFiles, metadata: tuple[tuple[str, str], ...]
    ) -> tuple[str, str] | grpc.StatusCode:
        """Ask who calls, with any metadata."""
        credentials = grpc.ssl_channel_credentials(
            self.authority.file.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
        )
        method = wire.methods["GetServerInfo"]
        with grpc.secure_channel(self.address, credentials) as channel:
            call = channel.unary_unary(method.path, None, method.response.FromString)
            try:
                reply: Any = call(b"", timeout=10, metadata=metadata)
            except grpc.RpcError as error:
                return error.code()
            return reply.tenant, reply.role


def tls_of(authority: Authority, files: CertificateFiles | None) -> opferry.TlsConfig:
    """Return what a client is told of TLS."""
    if files is None:
        return opferry.TlsConfig(authorities=str(authority.file))
    return opferry.TlsConfig(str(authority.file), str(files.certificate), str(files.key))


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualServer]:
    """A server with mutual TLS and a proxy before it."""
    folder = tmp_path_factory.mktemp("mutual")
    made = MutualServer(folder)
    credentials = {"tls": tls_of(made.authority, made.client)}
    with servers.tcp(folder, lines=made.lines, credentials=credentials) as server:
        made.address = server.address
        yield made


def test_a_client_believes_its_authorities_alone(secure: SecureServer, tmp_path: Path) -> None:
    """Another authority, another name, or no TLS at all: no call is made, no token sent."""
    other = opferry.TlsConfig(authorities=str(Authority(tmp_path, "other").file))
    renamed = opferry.TlsConfig(str(secure.authority.file), server_name="farm.example")
    for tls in (other, renamed, opferry.TlsConfig(), None):
        with (
            secure.connect(secure.vision, tls=tls) as client,
            pytest.raises(errors.TransportError),
        ):
            client.server_info(timeout=5)
    named = opferry.TlsConfig(str(secure.authority.file), server_name="localhost")
    with secure.connect(secure.vision, tls=named) as client:
        assert client.server_info().tenant == "vision"


def test_a_certificate_says_who_calls(mutual: MutualServer) -> None:
    """By its names; a token beside it counts more, and one that is wrong is not passed over."""
    with mutual.connect(mutual.client) as client:
        info = client.server_info()
    assert (info.tenant, info.role) == ("vision", "user")
    with mutual.connect(mutual.client, mutual.token) as client:
        assert client.server_info().tenant == "speech"
    with (
        mutual.connect(mutual.client, "opf_wrong") as client,
        pytest.raises(errors.AccessError, match="not known"),
    ):
        client.server_info()


def test_other_certificates_are_not_taken(mutual: MutualServer, tmp_path: Path) -> None:
    """None, a stranger's, an expired one: no connection; one that is not listed: no call."""
    stranger = Authority(tmp_path, "stranger").issue("ci.example", common_name="vision-ci")
    expired = mutual.authority.issue("ci.example", common_name="vision-ci", days=-1)
    for files in (None, stranger, expired):
        with mutual.connect(files) as client, pytest.raises(errors.TransportError):
            client.server_info(timeout=5)
    unlisted = mutual.authority.issue("someone.example")
    with (
        mutual.connect(unlisted) as client,
        pytest.raises(errors.AccessError, match="'someone\\.example' is nobody's"),
    ):
        client.server_info()
    with mutual.connect(unlisted, mutual.token) as client:
        assert client.server_info().tenant == "speech"


def test_a_server_whose_certificate_has_expired_is_not_believed(tmp_path: Path) -> None:
    """The client does not speak to it; with a new certificate in its place it does, soon."""
    authority, tokens = Authority(tmp_path), TokenFile(tmp_path / "tokens.toml")
    token, files = tokens.add("vision"), authority.issue("127.0.0.1")
    lines = (*files.lines, *tokens.lines)
    given = {"token": token, "tls": tls_of(authority, None)}

    def serves(address: str) -> bool:
        # each with a connection of its own
        with opferry.connect(address, retry=ONCE, **given) as client:
            try:
                return client.server_info(timeout=5).serving
            except errors.TransportError:
                return False

    with servers.tcp(tmp_path, lines=lines, credentials=given) as server:
        authority.issue_to(files, "127.0.0.1", days=-1)
        assert eventually(lambda: not serves(server.address))
        files.key.write_text("no key")
        assert eventually(lambda: '"not read"' in server.log.read_text())
        authority.issue_to(files, "127.0.0.1")
        assert eventually(lambda: serves(server.address))


def test_a_listed_proxy_says_whose_a_call_is(mutual: MutualServer) -> None:
    """By the certificate that it forwards, or the token; its own says nothing of others."""
    forwarded = ("x-forwarded-client-cert", 'By=spiffe://x;Hash=00;Subject="";DNS=behind.example')
    token = ("authorization", f"Bearer {mutual.token}")
    assert mutual.tenant(mutual.proxy, (forwarded,)) == ("vision", "viewer")
    assert mutual.tenant(mutual.proxy, (token,)) == ("speech", "user")
    assert mutual.tenant(mutual.proxy, (token, forwarded)) == ("speech", "user")
    denied = grpc.StatusCode.UNAUTHENTICATED
    assert mutual.tenant(mutual.proxy, ()) is denied
    assert mutual.tenant(mutual.proxy, (forwarded, forwarded)) is denied
    two = (forwarded[0], f"{forwarded[1]},DNS=vision-ci")
    assert mutual.tenant(mutual.proxy, (two,)) is denied
    assert mutual.tenant(mutual.proxy, ((forwarded[0], "nonsense"),)) is denied
    assert mutual.tenant(mutual.proxy, ((forwarded[0], "DNS=nobody.example"),)) is denied


def test_what_anybody_else_forwards_is_ignored(mutual: MutualServer) -> None:
    """The caller is whom the certificate of the connection names."""
    forged = ("x-forwarded-client-cert", "DNS=behind.example")
    assert mutual.tenant(mutual.client, (forged,)) == ("vision", "user")
    unlisted = mutual.authority.issue("someone.example")
    assert mutual.tenant(unlisted, (forged,)) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("URI=spiffe://a/b;DNS=x;DNS=y", ("spiffe://a/b", "x", "y")),
        ('Hash=0;Subject="O=x,CN=who is\\, it,C=y";URI=', ("who is, it",)),
        ('Subject="CN=who,O=a/CN=b\\,CN=c"', ("who",)),
        ('Subject="CN=who,CN=else"', ()),
        ('Cert="%2D%2D;,=";DNS=x', ("x",)),
        ("", None),
        ("DNS=x,DNS=y", None),
        ("DNS=x;", None),
        ('DNS="x', None),
        ("x", None),
    ],
)
def test_what_is_read_of_a_forwarded_certificate(
    header: str, names: tuple[str, ...] | None
) -> None:
    """One element, names in the order in which they count."""
    assert names_of(header) == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--auth.tokens", "t"], "tokens would travel in clear"),
        (["--tls.certificate", "c", "--tls.key", "k"], "there are no credentials"),
        (["--tls.certificate", "c"], "go together"),
        (["--tls.client-authorities", "a"], "takes tls.certificate"),
        (["--tls.certificate", "c", "--tls.key", "k", "--tls.proxies", "p"], "takes tls.client"),
    ],
)
def test_others_are_served_with_credentials_and_tls_alone(arguments: list[str], words: str) -> None:
    """Half of what it takes is refused, and the text says which half."""
    with pytest.raises(ConfigError, match=words):
        load_config(["--address", "0.0.0.0:0", *arguments])


def test_credentials_with_tls_need_no_insecure() -> None:
    """Tokens and TLS, or certificates on both sides."""
    files = ["--address", "0.0.0.0:0", "--tls.certificate", "c", "--tls.key", "k"]
    assert load_config([*files, "--auth.tokens", "t"]).auth.tokens == "t"
    assert load_config([*files, "--tls.client-authorities", "a"]).tls.client_authorities == "a"
    proxied = load_config(
        [*files, "--tls.client-authorities", "a", "--auth.tokens", "t", "--tls.proxies", "a,b"]
    )
    assert proxied.tls.proxies == ["a", "b"]
    with pytest.raises(ConfigError, match=r"takes auth\.tokens"):
        load_config([*files, "--tls.client-authorities", "a", "--tls.proxies", "a"])


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The key of another certificate, a file that is none, one that is not there."""
    authority = Authority(tmp_path)
    one, other = authority.issue("127.0.0.1"), authority.issue("127.0.0.1")
    for certificate, key, words in (
        (one.certificate, other.key, "mismatch"),
        (one.certificate, one.certificate, "tls: of"),
        (one.certificate, tmp_path / "none", "No such file"),
    ):
        with pytest.raises(TlsError, match=words):
            ServerTls(certificate, key, None)
    with pytest.raises(TlsError, match="tls: of"):
        ServerTls(one.certificate, one.key, one.key)
