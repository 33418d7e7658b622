"""Certificates: made by one call for a private fleet, and loaded with errors that say which file is wrong.

A fleet has an authority of its own (`ca.pem`, `ca.key`). The server shows a certificate that it signed; clients trust
only `ca.pem`. With mutual TLS clients show certificates that it signed, too. Keys are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from splitfl.transport.base import TransportError

AUTHORITY_DAYS = 3650
LEAF_DAYS = 825

_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
_NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """The server's certificate chain and key, as PEM files; with `client_ca`, clients must show a certificate too."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTLS:
    """The authority that the client trusts, as a PEM file; with mutual TLS, the client's own certificate and key."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM bytes or as files."""

    certificate: bytes
    key: bytes


def load_pair(certificate: Path, key: Path) -> Pair:
    """A certificate and the key that belongs to it.

    Raises TransportError, naming the file, where one is missing, is no PEM, has expired, or where the two do not match.
    """
    pair = Pair(_read(certificate, what="certificate"), _read(key, what="key"))
    leaf = _load_certificate(pair.certificate, certificate)
    if _public_bytes(leaf.public_key()) != _public_bytes(_load_key(pair.key, key).public_key()):
        raise TransportError(f"key {key} does not belong to certificate {certificate}")
    return pair


def load_authority(ca: Path) -> bytes:
    """The PEM bytes of an authority's certificate. Raises TransportError, naming the file, as `load_pair` does."""
    content = _read(ca, what="authority's certificate")
    _load_certificate(content, ca)
    return content


def make_certificates(directory: Path, hosts: Sequence[str]) -> ServerTLS:
    """Make `server.pem` and `server.key` in `directory`, valid for `hosts` (DNS names or IP addresses).

    The authority `ca.pem`, `ca.key` is made if it is not there, else used again, so that clients keep the copy that
    they have. Raises TransportError for an impossible host.
    """
    if not hosts:
        raise TransportError("certificates: hosts is empty, expected the names or addresses at which clients connect")
    names = [_general_name(host) for host in hosts]
    authority, authority_key = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(hosts[0], key.public_key(), issuer=authority, days=LEAF_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = _as_leaf(builder, authority, usage=ExtendedKeyUsageOID.SERVER_AUTH)
    _write_pair(directory, "server", builder.sign(authority_key, hashes.SHA256()), key)
    return ServerTLS(certificate=directory / "server.pem", key=directory / "server.key")


def make_client_certificate(directory: Path, name: str) -> ClientTLS:
    """Make `NAME.pem` and `NAME.key`, with which a client shows who it is, signed by the authority in `directory`."""
    if not _NAME.fullmatch(name) or name in ("ca", "server"):
        raise TransportError(f"client {name!r}: expected letters, digits, dots, dashes, and not ca or server")
    authority, authority_key = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key.public_key(), issuer=authority, days=LEAF_DAYS)
    builder = _as_leaf(builder, authority, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    _write_pair(directory, name, builder.sign(authority_key, hashes.SHA256()), key)
    return ClientTLS(ca=directory / "ca.pem", certificate=directory / f"{name}.pem", key=directory / f"{name}.key")


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key_file = directory / "ca.pem", directory / "ca.key"
    if certificate.exists() or key_file.exists():
        pair = load_pair(certificate, key_file)
        key = _load_key(pair.key, key_file)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TransportError(f"key {key_file} is no elliptic-curve key, as this command makes them")
        return _load_certificate(pair.certificate, certificate), key
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("splitfl authority", key.public_key(), issuer=None, days=AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    authority = builder.sign(key, hashes.SHA256())
    _write_pair(directory, "ca", authority, key)
    return authority, key


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, *, issuer: x509.Certificate | None, days: int
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A day in the past, for devices whose clocks run behind.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _as_leaf(
    builder: x509.CertificateBuilder, authority: x509.Certificate, *, usage: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise TransportError(
                f"host {host!r}: expected a DNS name or an IP address, without scheme and port"
            ) from None
        return x509.DNSName(host)


def _write_pair(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(directory / f"{name}.key", private, mode=0o600)
    _write(directory / f"{name}.pem", certificate.public_bytes(Encoding.PEM), mode=0o644)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write aside with the final mode, then rename: a key is never readable by others, not for a moment."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    aside.replace(path)


def _read(path: Path, *, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TransportError(f"cannot read the {what} {path}: {error.strerror}") from None


def _load_certificate(content: bytes, path: Path) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(content)
    except ValueError:
        raise TransportError(f"{path} holds no certificate in PEM form") from None
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise TransportError(f"the certificate {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    return certificate


def _load_key(content: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TransportError(f"{path} holds no private key in PEM form without a password") from None


def _public_bytes(key: PublicKeyTypes | CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
