"""What one tenant has left is nothing to another: in memory, among kept data, under leases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.v1 import operator_service_pb2 as pb
from opferry.validation import CaseStatus
from tests.security.conftest import ONCE
from tests.support import raw, servers
from tests.support.calls import tnd
from tests.support.counting_proxy import counting_proxy
from tests.support.credentials import TokenFile
from tests.support.leasing import arena, lessee

PATTERN = 0x5A
TOKENS = 16_384
LEASED_BYTES = 2**20


class TwoTenants:
    """A server on loopback with tokens of two tenants; its operator writes nothing at all."""

    def __init__(self, folder: Path) -> None:
        tokens = TokenFile(folder / "tokens.toml")
        self.one, self.other = tokens.add("one"), tokens.add("other")
        self.lines = tokens.lines
        self.address = ""

    def connect(self, token: str, **options: Any) -> opferry.Client:
        """Connect as a tenant."""
        return opferry.connect(self.address, token=token, retry=ONCE, timeout=60, **options)


@pytest.fixture(scope="module", params=["IdleBackend", "SleepBackend"])
def tenants(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoTenants]:
    """A server whose operator computes, and one whose operator writes nothing."""
    folder = tmp_path_factory.mktemp("tenants")
    made = TwoTenants(folder)
    with servers.tcp(
        folder, request.param, lines=made.lines, credentials={"token": made.one}
    ) as server:
        made.address = server.address
        yield made


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "chunks"])
@pytest.mark.parametrize("tokens", [64, TOKENS], ids=["small", "large"])
def test_no_output_has_anything_of_another_tenant(
    tenants: TwoTenants, shared: bool, tokens: int
) -> None:
    """Neither where the operator writes, nor where it does not; absent outputs are not there."""
    marked = np.frombuffer(bytes([PATTERN]) * 4 * tokens * 8, np.float32).reshape(tokens, 1, 8)
    cold = np.zeros_like(marked)  # as cos it also says how long to sleep
    with tenants.connect(tenants.one, shared_memory=shared) as client:
        for _ in range(4):
            client.apply_rotary_pos_emb_grad(
                marked, marked, cold, marked, query=marked, key=marked, layout=4
            )
    nothing = np.zeros_like(marked)
    with tenants.connect(tenants.other, shared_memory=shared) as client:
        for _ in range(4):
            found = client.apply_rotary_pos_emb_grad(nothing, nothing, cold, nothing, layout=4)
            assert found.grad_cos is None
            assert found.grad_sin is None
            for array in (found.grad_query, found.grad_key):
                assert not (array.view(np.uint8) == PATTERN).any()


@pytest.mark.full
def test_kept_data_are_their_tenants_alone(tmp_path: Path) -> None:
    """From one address too: what one has sent, the other has to send, although it has the same."""
    two, arguments = TwoTenants(tmp_path), tnd(20_000, 1, 1, with_query=False)
    inputs = {name: value for name, value in arguments.items() if name != "layout"}
    size = sum(value.nbytes for value in inputs.values())
    sent = []
    with (
        servers.tcp(tmp_path, lines=two.lines, credentials={"token": two.one}) as server,
        counting_proxy(server.address) as proxy,
    ):
        two.address = proxy.address
        for token in (two.one, two.one, two.other):
            with two.connect(token) as client:
                before = proxy.up_bytes
                judged = client.validate("ApplyRotaryPosEmbGrad", inputs, attributes={"layout": 4})
                assert judged.status is CaseStatus.PASS, judged.reason
                sent.append(proxy.up_bytes - before)
    assert sent[0] >= size > 8 * sent[1]
    assert sent[2] >= size


def test_a_lease_is_no_credential(tenants: TwoTenants) -> None:
    """Whoever may use the lease socket still says who he is when he runs something in it."""
    with tenants.connect(tenants.one) as client:
        path = client.server_info().lease_socket
    with lessee(path) as connection:
        leased = connection.lease(LEASED_BYTES)
        assert leased is not None
        fields = arena(leased[0], LEASED_BYTES)
        with pytest.raises(errors.AccessError, match="there are no credentials"):
            raw.stream(tenants.address, [raw.header_frame(**fields)])
        request = pb.ExecuteSharedRequest(header=raw.header(**fields))
        with pytest.raises(errors.AccessError, match="there are no credentials"):
            raw.unary(tenants.address, "ExecuteShared", request.SerializeToString())
