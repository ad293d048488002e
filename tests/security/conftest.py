"""A server with TLS and tokens, and what its tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from tests.support import servers
from tests.support.credentials import Authority, TokenFile

ONCE = opferry.RetryConfig(attempts=1)


class SecureServer:
    """A server with TLS and tokens of two tenants."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.certificate = self.authority.issue("localhost", "127.0.0.1")
        self.tokens = TokenFile(folder / "tokens.toml")
        self.tls = opferry.TlsConfig(authorities=str(self.authority.file))
        self.vision = self.tokens.add("vision", name="vision-ci")
        self.speech = self.tokens.add("speech")
        self.viewer = self.tokens.add("vision", "viewer", name="vision-screen")
        self.admin = self.tokens.add("ops", "admin")
        self.expired = self.tokens.add("vision", name="old", expires="2026-01-01T00:00:00Z")
        self.lines = (*self.certificate.lines, *self.tokens.lines)
        self.address = ""
        self.log = folder / "server.log"
        self.pid = 0

    def connect(self, token: str | None = None, **options: Any) -> opferry.Client:
        """Connect with a token, and try each call once."""
        given = {"retry": ONCE, "timeout": 30, "tls": self.tls, **options}
        return opferry.connect(self.address, token=token, **given)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server with TLS and tokens, whose backend fails at length."""
    folder = tmp_path_factory.mktemp("secure")
    made = SecureServer(folder)
    credentials = {"token": made.vision, "tls": made.tls}
    with servers.tcp(
        folder, "LongErrorBackend", lines=made.lines, credentials=credentials
    ) as server:
        made.address, made.pid = server.address, server.pid
        yield made


@pytest.fixture
def call() -> Callable[[opferry.Client], Any]:
    """Run an operator, on ones."""
    ones = np.ones((2, 1, 8), np.float32)

    def run(client: opferry.Client) -> Any:
        return client.apply_rotary_pos_emb_grad(ones, ones, ones, ones, layout=4)

    return run
