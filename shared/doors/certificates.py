"""What a server shows of itself: X.509 certificates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import NameOID

from shared.doors import door


@dataclass(frozen=True)
class Shown:
    """What stands in a certificate.

    Args:
        issuers: what the issuer calls itself, each name once.
        begins, ends: between which it is valid, UTC.
        names: the servers that it is for.
    """

    issuers: tuple[str, ...]
    begins: datetime
    ends: datetime
    names: tuple[str, ...]


@door("is no certificate")
def parse(content: bytes) -> Shown:
    """Read a certificate (DER).

    Raises:
        Refusal: it is none.
    """
    parsed = x509.load_der_x509_certificate(content)
    kinds = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
    called = [str(each.value) for kind in kinds for each in parsed.issuer.get_attributes_for_oid(kind)]
    try:
        shown = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [str(name.value) for name in shown]
    except (x509.ExtensionNotFound, ValueError):
        names = []
    issuers = tuple(dict.fromkeys(called)) or (parsed.issuer.rfc4514_string(),)
    return Shown(issuers, parsed.not_valid_before_utc, parsed.not_valid_after_utc, tuple(names))
