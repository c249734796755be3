"""A certificate authority of our own, as a hospital's IT has one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY = "ca.pem"  # what clients must trust
CHAIN = "server.pem"  # the server's certificate
KEY = "server.key"


class Authority:
    """Certifies servers; nobody trusts it who was not told to."""

    def __init__(self, name: str = "A hospital's own authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        itself = (
            self._begun(self._name, self._key.public_key(), ends_in_days=2)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        self.certificate = itself.public_bytes(Encoding.PEM)

    def certify(self, *hosts: str, begins_in_days: int = -3, ends_in_days: int = 2) -> tuple[bytes, bytes]:
        """A server's certificate for ``hosts``, names or addresses, valid since three days, and its key (PEM)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        server = (
            self._begun(subject, key.public_key(), begins_in_days=begins_in_days, ends_in_days=ends_in_days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        own = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return server.public_bytes(Encoding.PEM), own

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, begins_in_days: int = -3, ends_in_days: int
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=begins_in_days))
            .not_valid_after(now + timedelta(days=ends_in_days))
        )


def write_certificates(folder: Path, *hosts: str) -> None:
    """Make an authority and let it certify a server for ``hosts``, names or addresses.

    ``folder`` then holds ``AUTHORITY``, ``CHAIN`` and ``KEY``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    certificate, key = authority.certify(*hosts)
    (folder / AUTHORITY).write_bytes(authority.certificate)
    (folder / CHAIN).write_bytes(certificate)
    (folder / KEY).write_bytes(key)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
