"""Who is who behind Envoy: tokens, certificates of users, and what nobody may pretend."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import opferry
from opferry import errors, wire
from opferry.v1 import operator_service_pb2 as pb
from tests.farm.running import Farm
from tests.support.calls import tnd
from tests.support.credentials import CertificateFiles
from tests.support.processes import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

FORWARDED = "x-forwarded-client-cert"


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """One server with mutual TLS, behind Envoy."""
    running = Farm(tmp_path_factory.mktemp("farm"), 1, tls=True)
    yield running
    running.close()


def tenant(farm: Farm, files: CertificateFiles | None, *metadata: tuple[str, str]) -> str:
    """Return whose the server takes a request for that comes without a token."""
    assert farm.access is not None
    tls = farm.access.with_certificate(files)["tls"]
    content = [
        Path(path).read_bytes() if path else None
        for path in (tls.authorities, tls.key, tls.certificate)
    ]
    method = wire.methods["GetServerInfo"]
    with grpc.secure_channel(farm.envoy.address, grpc.ssl_channel_credentials(*content)) as channel:
        ask = channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        found: str = ask(pb.GetServerInfoRequest(), metadata=metadata, timeout=10).tenant
        return found


def test_a_token_passes(farm: Farm) -> None:
    """Each tenant's token is its own behind Envoy too."""
    for number in (1, 3):
        with farm.client(number) as client:
            assert client.server_info().tenant == f"tenant-{number}"
            client.apply_rotary_pos_emb_grad(**tnd())


def test_a_users_certificate_is_forwarded(farm: Farm) -> None:
    """Who shows Envoy a certificate needs no token, and his name arrives."""
    assert farm.access is not None
    assert tenant(farm, farm.access.alice) == "tenant-0"


@pytest.mark.parametrize("header", ['Subject="CN=alice"', 'By=x;DNS=alice;Subject="CN=alice"'])
def test_a_certificate_that_a_client_claims_is_none(farm: Farm, header: str) -> None:
    """What a client itself writes into the header is dropped."""
    with pytest.raises(grpc.RpcError) as caught:
        tenant(farm, None, (FORWARDED, header))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_claim_does_not_replace_ones_own_certificate(farm: Farm) -> None:
    """With a certificate, the header is that certificate's."""
    assert farm.access is not None
    assert tenant(farm, farm.access.alice, (FORWARDED, 'Subject="CN=admin"')) == "tenant-0"


def test_a_certificate_of_another_authority_is_refused(farm: Farm) -> None:
    """Envoy asks for none, but takes no other either: here, one that is good inside only."""
    assert farm.access is not None
    inside = farm.access.direct()["tls"]
    tls = farm.access.with_certificate(None)["tls"]
    mixed = opferry.TlsConfig(tls.authorities, inside.certificate, inside.key)
    once = opferry.RetryConfig(attempts=1)
    with (
        opferry.connect(
            farm.envoy.address, token=farm.access.tokens[0], tls=mixed, retry=once
        ) as client,
        pytest.raises(errors.TransportError),
    ):
        client.server_info(timeout=10)


def test_servers_take_nobody_without_a_certificate(farm: Farm) -> None:
    """A token alone opens Envoy, and no server itself."""
    assert farm.access is not None
    tls = farm.access.direct()["tls"]
    bare = opferry.TlsConfig(tls.authorities)
    once = opferry.RetryConfig(attempts=1)
    with (
        opferry.connect(
            farm.servers[0].address, token=farm.access.tokens[0], tls=bare, retry=once
        ) as client,
        pytest.raises(errors.TransportError),
    ):
        client.server_info(timeout=10)


def test_no_token_is_in_envoys_log(farm: Farm) -> None:
    """Envoy logs requests, and no header with a credential."""
    assert farm.access is not None
    log = farm.envoy.log.read_text()
    assert "GetServerInfo" in log
    assert not any(token in log for token in farm.access.tokens)


def test_a_new_certificate_is_found_without_a_restart(farm: Farm) -> None:
    """New connections see it; the client that is connected goes on."""
    assert farm.access is not None
    host, _, port = farm.envoy.address.partition(":")

    def shown() -> str:
        return ssl.get_server_certificate((host, int(port)))

    before = shown()
    with farm.client() as client:
        client.server_info()
        farm.access.renew_outside()
        assert eventually(lambda: shown() != before)
        client.server_info()
    with farm.client() as client:
        client.server_info()
