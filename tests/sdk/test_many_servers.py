"""One client, many servers: calls go to each in turn, to none that is ill, and to new ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import opferry
from opferry import aio, errors
from opferry._targets import channel_uri, parse_target
from tests.support import servers
from tests.support.credentials import Authority, TokenFile
from tests.support.name_server import name_server
from tests.support.processes import eventually


class Farm:
    """Servers on addresses of this host that share a port, as the hosts of a farm do."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.port = servers.free_port()
        self.servers: dict[str, servers.TcpServer] = {}

    def start(self, host: str) -> servers.TcpServer:
        """Start a server whose id is its address."""
        folder = self._folder / host
        folder.mkdir(exist_ok=True)
        lines = (f'server_id = "{host}"',)
        server = self._stack.enter_context(
            servers.tcp(folder, lines=lines, address=f"{host}:{self.port}")
        )
        self.servers[host] = server
        return server


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """No servers yet."""
    with ExitStack() as stack:
        yield Farm(tmp_path, stack)


def _who(client: opferry.Client, count: int = 12) -> Counter[str]:
    return Counter(client.server_info().server_id for _ in range(count))


@pytest.mark.full
def test_a_name_of_many_servers(farm: Farm) -> None:
    """All take part; one that ends gets nothing more, and loses nothing; a new one is found."""
    for host in ("127.0.0.2", "127.0.0.3"):
        farm.start(host)
    with name_server("127.0.0.2", "127.0.0.3") as names:
        target = f"dns://{names.authority}/farm.example:{farm.port}"
        with opferry.connect(target, timeout=60) as client:
            assert eventually(lambda: len(_who(client)) == 2)
            assert set(_who(client).values()) == {6}
            farm.start("127.0.0.4")
            names.addresses[:] = ["127.0.0.3", "127.0.0.4"]
            assert farm.servers["127.0.0.2"].stop() == 0
            assert eventually(lambda: set(_who(client)) == {"127.0.0.3", "127.0.0.4"}, 40)
            farm.servers["127.0.0.3"].process.kill()
            for _ in range(20):
                client.server_info()
            assert set(_who(client)) == {"127.0.0.4"}


@pytest.mark.full
def test_a_list_of_servers(farm: Farm) -> None:
    """By both clients; a server that comes back takes part again."""
    for host in ("127.0.0.2", "127.0.0.3"):
        farm.start(host)
    target = f"127.0.0.2:{farm.port},127.0.0.3:{farm.port}"

    async def who() -> Counter[str]:
        async with aio.connect(target, timeout=60) as client:
            for _ in range(100):
                found = Counter([(await client.server_info()).server_id for _ in range(4)])
                if len(found) == 2:
                    break
            return found

    assert len(asyncio.run(who())) == 2
    with opferry.connect(target, timeout=60) as client:
        assert eventually(lambda: len(_who(client)) == 2)
        farm.servers["127.0.0.2"].process.kill()
        farm.servers["127.0.0.2"].process.wait()
        assert set(_who(client)) == {"127.0.0.3"}
        farm.start("127.0.0.2")
        assert eventually(lambda: len(_who(client)) == 2, 30)


@pytest.mark.full
def test_the_servers_of_a_list_share_a_certificates_name(tmp_path: Path) -> None:
    """It is given where the list does not have it; the token goes to each."""
    authority, tokens = Authority(tmp_path), TokenFile(tmp_path / "tokens.toml")
    token, files = tokens.add("vision"), authority.issue("farm.example")
    tls = opferry.TlsConfig(str(authority.file), server_name="farm.example")
    lines = (*files.lines, *tokens.lines)
    given: dict[str, Any] = {"token": token, "tls": tls}
    with servers.tcp(tmp_path, lines=lines, credentials=given) as server:
        nobody = f"127.0.0.1:{servers.free_port()}"
        with opferry.connect(f"{nobody},{server.address}", timeout=60, **given) as client:
            assert client.server_info().tenant == "vision"
    unnamed = opferry.TlsConfig(str(authority.file))
    with pytest.raises(errors.RequestError, match="give server_name"):
        opferry.connect("a.example:1,b.example:1", token=token, tls=unnamed)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("dns:///farm:1", "dns:///farm:1"),
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("127.0.0.1:1, [::1]:2", "ipv6:[::ffff:127.0.0.1]:1,[::1]:2"),
        ("unix:/run/opferry", "unix:/run/opferry"),
    ],
)
def test_targets_as_grpc_has_them(text: str, uri: str) -> None:
    """A list is of one family of addresses."""
    target = parse_target(text)
    assert target is not None
    assert channel_uri(target) == uri


@pytest.mark.full
@pytest.mark.parametrize(
    "text", ["", "farm", "farm:", ":1", "farm:70000", "a:1,b", "a:1,,b:2", "dns:///farm", "x://a:1"]
)
def test_what_is_no_target(text: str) -> None:
    """Is refused before anything is tried."""
    assert parse_target(text) is None


@pytest.mark.full
def test_a_list_with_a_name_that_nobody_knows() -> None:
    """Says which target, when it connects."""
    with pytest.raises(errors.TransportError, match=r"nobody\.invalid:1.*no address"):
        opferry.connect("127.0.0.1:1,nobody.invalid:1")
