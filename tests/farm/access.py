"""The certificates and tokens of a farm, laid out as deploy/ expects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import opferry
from tests.support.credentials import Authority, CertificateFiles, TokenFile

PROXY = "opferry-envoy"
"""The name in Envoy's certificate, as deploy/k8s/base/server.toml has it in tls.proxies."""

SERVERS = "opferry-servers"
"""The name in the servers' certificate that Envoy looks for."""

TENANTS = 5


class FarmAccess:
    """Three authorities: one that users know, one for users' own certificates, one inside."""

    def __init__(self, folder: Path) -> None:
        """Issue everything into an empty folder."""
        self.folder = folder / "certificates"
        self._outside, self._users, self._inside = (
            Authority(folder, name) for name in ("outside", "users", "inside")
        )
        for name in ("outside", "inside", "users", "servers"):
            (self.folder / name).mkdir(parents=True)
        self._outside.issue_to(self._files("outside"), "127.0.0.1")
        self._inside.issue_to(self._files("inside"), PROXY, common_name=PROXY)
        for name, authority in (("users", self._users), ("servers", self._inside)):
            (self.folder / name / "ca.crt").write_bytes(authority.file.read_bytes())
        self._server = self._inside.issue(SERVERS, "127.0.0.1")
        self._direct = self._inside.issue("direct", common_name="direct")
        self.alice = self._users.issue("alice.example", common_name="alice")
        """The certificate of a user who needs no token."""
        self._tokens = TokenFile(folder / "tokens.toml")
        self.tokens = [self._tokens.add(f"tenant-{number}") for number in range(TENANTS)]
        self._tokens.add_certificate("alice", "tenant-0")

    def server_lines(self) -> tuple[str, ...]:
        """Return the lines of a server's configuration."""
        return (
            *self._server.lines,
            f'client_authorities = "{self._inside.file}"',
            f'proxies = ["{PROXY}"]',
            *self._tokens.lines,
        )

    def direct(self) -> dict[str, Any]:
        """Return what `opferry.connect` needs for a server itself: a certificate and a token."""
        return {"token": self.tokens[0], "tls": self._tls(self._inside, self._direct)}

    def of(self, number: int) -> dict[str, Any]:
        """Return what `opferry.connect` needs for Envoy, as one of the tenants with a token."""
        return {"token": self.tokens[number % TENANTS], "tls": self._tls(self._outside)}

    def with_certificate(self, files: CertificateFiles | None) -> dict[str, Any]:
        """Return what `opferry.connect` needs for Envoy without any token."""
        return {"tls": self._tls(self._outside, files)}

    def renew_outside(self) -> None:
        """Put another certificate in the place of the one that users see."""
        files, fresh = self._files("outside"), self._outside.issue("127.0.0.1")
        fresh.key.replace(files.key)
        fresh.certificate.replace(files.certificate)

    def _files(self, name: str) -> CertificateFiles:
        return CertificateFiles(self.folder / name / "tls.crt", self.folder / name / "tls.key")

    @staticmethod
    def _tls(authority: Authority, own: CertificateFiles | None = None) -> opferry.TlsConfig:
        authorities = str(authority.file)
        if own is None:
            return opferry.TlsConfig(authorities=authorities)
        return opferry.TlsConfig(authorities, str(own.certificate), str(own.key))
