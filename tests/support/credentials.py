"""Credentials for tests: an authority with its certificates, and files of tokens."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

from opferry_server.access.credentials import digest_of, new_token


@dataclass(frozen=True)
class CertificateFiles:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    @property
    def lines(self) -> tuple[str, ...]:
        """What has a server use them, in its configuration; more of `[tls]` may follow."""
        return ("[tls]", f'certificate = "{self.certificate}"', f'key = "{self.key}"')


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.file = folder / f"{name}.pem"
        """The authority's own certificate."""
        self._authority.cert_pem.write_to_path(str(self.file))
        self._count = 0

    def issue(self, *names: str, common_name: str = "", days: float = 30) -> CertificateFiles:
        """Issue a certificate for some names; one of negative days has expired."""
        self._count += 1
        stem = self._folder / f"{self._name}-{self._count}"
        files = CertificateFiles(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        self.issue_to(files, *names, common_name=common_name, days=days)
        return files

    def issue_to(
        self, files: CertificateFiles, *names: str, common_name: str = "", days: float = 30
    ) -> None:
        """Issue a certificate in place of another."""
        now = datetime.datetime.now(datetime.timezone.utc)
        made = self._authority.issue_cert(
            *names,
            common_name=common_name or None,
            not_before=now - datetime.timedelta(days=60),
            not_after=now + datetime.timedelta(days=days),
            key_type=trustme.KeyType.ECDSA,
        )
        files.key.write_bytes(made.private_key_pem.bytes())
        files.certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))


class TokenFile:
    """A file of tokens and certificates, as a server reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[str] = []
        self.write()

    @property
    def lines(self) -> tuple[str, ...]:
        """What has a server read it, in its configuration."""
        return self.lines_of(self.path)

    @staticmethod
    def lines_of(path: Path) -> tuple[str, ...]:
        """Return what has a server read such a file."""
        return ("[auth]", f'tokens = "{path}"')

    def add(self, tenant: str, role: str = "user", *, name: str = "", expires: str = "") -> str:
        """Add a token and return it."""
        token = new_token()
        lines = ["[[tokens]]", f'name = "{name or tenant}"', f'tenant = "{tenant}"']
        lines += [f'role = "{role}"', f'sha256 = "{digest_of(token)}"']
        self._add([*lines, f"expires = {expires}"] if expires else lines)
        return token

    def add_certificate(self, name: str, tenant: str, role: str = "user") -> None:
        """Add the owner of a certificate."""
        self._add(
            ["[[certificates]]", f'name = "{name}"', f'tenant = "{tenant}"', f'role = "{role}"']
        )

    def clear(self) -> None:
        """Let nobody in any more."""
        self._entries.clear()
        self.write()

    def write(self) -> None:
        """Write what was added, in place of what is there."""
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(self._entries))
        new.replace(self.path)

    def _add(self, lines: list[str]) -> None:
        self._entries.append("\n".join(lines) + "\n")
        self.write()
