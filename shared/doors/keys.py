"""Public keys, and what was signed or agreed upon by them."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from nacl.bindings import crypto_core_ed25519_is_valid_point

from shared.doors import Refusal, door

_DIGITS = frozenset("0123456789abcdef")


@door("must be a public key that Ed25519 makes")
def require_public(key: str) -> None:
    """Check that ``key``, 64 hex digits, is a public key of Ed25519 in the form of RFC 8032.

    Under a key of small order anybody can sign; one that is written otherwise has a second text.

    Raises:
        Refusal: it is none.
    """
    if not crypto_core_ed25519_is_valid_point(bytes.fromhex(key)):
        raise Refusal("must be a public key that Ed25519 makes")


@door("its signature does not hold")
def require_signed(content: bytes, key: object, signature: object) -> None:
    """Check that ``signature``, 128 hex digits, is Ed25519 over ``content`` by ``key``, 64 hex digits.

    Raises:
        Refusal: it is not, or either is none.
    """
    if not isinstance(key, str) or not isinstance(signature, str) or not (_is_hex(key, 64) and _is_hex(signature, 128)):
        raise Refusal("has no well-formed key and signature")
    require_public(key)
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), content)


@door("is no public key")
def agreed(own: X25519PrivateKey, public: str) -> bytes:
    """Return the 32 bytes that only ``own`` and the other side's private key yield.

    Raises:
        Refusal: ``public``, 64 hex digits, is no public key.
    """
    return own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and _DIGITS.issuperset(text)
