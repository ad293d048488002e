"""The server's side of TLS: certificate and key, which may change while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from opferry_server.access.files import WatchedFiles


class TlsError(Exception):
    """The certificate, its key or the authorities cannot be used; the text says why."""


class ServerTls:
    """What a server shows of itself, and whom it takes as a client."""

    def __init__(self, certificate: Path, key: Path, client_authorities: Path | None) -> None:
        """Read the files, in PEM.

        Args:
            certificate: the server's, with those between it and its authority.
            key: the certificate's.
            client_authorities: clients must have a certificate of one of these; None: need none.

        Raises:
            TlsError: if a file cannot be read, or they do not fit together.
        """
        self._certificate = certificate
        self._key = key
        self._client_authorities = client_authorities
        self._configuration: grpc.ServerCertificateConfiguration
        paths = [path for path in (certificate, key, client_authorities) if path is not None]
        self.files = WatchedFiles("certificate", paths, self._read)
        """What is to be looked at now and then."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return what opens a port; each new connection takes the newest certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            lambda: self._configuration,
            require_client_authentication=self._client_authorities is not None,
        )

    def _read(self) -> None:
        self._check()
        authorities = self._client_authorities
        try:
            self._configuration = grpc.ssl_server_certificate_configuration(
                [(self._key.read_bytes(), self._certificate.read_bytes())],
                None if authorities is None else authorities.read_bytes(),
            )
        except OSError as err:
            raise TlsError(f"tls: {err}") from err

    def _check(self) -> None:
        """Try the files with Python's own TLS: gRPC would only notice at the first connection."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, _no_password)
            if self._client_authorities is not None:
                context.load_verify_locations(self._client_authorities)
        except (OSError, ValueError) as err:
            # ssl.SSLError is an OSError; it names a rule, and no content
            names = ", ".join(
                f"{path}"
                for path in (self._certificate, self._key, self._client_authorities)
                if path is not None
            )
            raise TlsError(f"tls: of {names}: {err}") from err
        if self._client_authorities is not None and not context.get_ca_certs():
            raise TlsError(f"tls: {self._client_authorities} has no certificate of an authority")


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not")
