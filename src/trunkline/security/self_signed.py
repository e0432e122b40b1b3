"""A CA of one's own, a certificate for the broker and one for each client: TLS to try out, or for a closed network.

Files in PEM form, in one directory; keys can be read by their owner alone. Keys are on the curve P-256: a handshake with one
costs a fraction of an RSA key's. What is there already is not overwritten. Needs the package `cryptography`.

    ca.pem, ca.key            who signs; clients are given ca.pem
    server.pem, server.key    the broker's, for the names and addresses that it is reached by
    NAME.pem, NAME.key        a client's, with the distinguished name CN=NAME
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_LEEWAY: Final = timedelta(hours=1)  # for clocks that are behind


class FilesExist(Exception):
    """Certificates are there already; the text names the first."""


def make(
    directory: Path, *, names: Sequence[str] = (), clients: Iterable[str] = ("client",), days: int = 365
) -> list[Path]:
    """Make all of it; returns the files."""
    clients = list(dict.fromkeys(clients))
    stems = ["ca", "server", *clients]
    files = [directory / f"{stem}.{kind}" for stem in stems for kind in ("pem", "key")]
    for path in files:
        if path.exists():
            raise FilesExist(str(path))
    directory.mkdir(parents=True, exist_ok=True)
    authority = _Authority(days)
    _write(directory, "ca", authority.certificate, authority.key)
    _write(directory, "server", *authority.sign("trunkline", server_names=list(dict.fromkeys((*LOCAL_NAMES, *names)))))
    for client in clients:
        _write(directory, client, *authority.sign(client))
    return files


class _Authority:
    def __init__(self, days: int) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._days = days
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _common_name("Trunkline self-signed CA")
        builder = self._begin(self.name, self.key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.certificate = self._signed(builder.add_extension(_usage(signs=True), True))

    def sign(self, name: str, server_names: Sequence[str] = ()) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(_common_name(name), key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(_usage(signs=False), True)
        if server_names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(each) for each in server_names]), False
            )
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server_names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return self._signed(builder.add_extension(authority, False)), key

    def _begin(self, name: x509.Name, key: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        from cryptography import x509

        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LEEWAY)
            .not_valid_after(now + timedelta(days=self._days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self.key, hashes.SHA256())


def _common_name(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(directory: Path, stem: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    (directory / f"{stem}.pem").write_bytes(certificate.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    descriptor = os.open(directory / f"{stem}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
