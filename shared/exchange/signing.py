"""Keys kept in files, Ed25519 signatures, and signed JSON.

A signed record is one file: the canonical bytes (RFC 8785) of ``{"body": …, "key": hex, "signature": hex}``,
the signature being over the canonical bytes of the body. Nothing but those exact bytes is accepted, so
changing any byte of the file, white space included, is noticed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NoReturn, Self

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shared.errors import StandingError
from shared.folder.durable import read_private, write_file

Json = dict[str, Any]

_GREATEST = 2**53 - 1  # that RFC 8785 has, either way
_LONGEST_INTEGER = 17  # characters
_SHOWN_DIGITS = 20


class KeptKey(ABC):
    """A private key of 32 bytes, made where it is used and kept there; ``public`` is its public half, 64 hex digits."""

    public: str

    @abstractmethod
    def __init__(self, private: bytes) -> None: ...

    @classmethod
    def at(cls, path: Path) -> Self:
        """Load the key kept at ``path``.

        Raises:
            StandingError: it is missing, readable by others, or not a key.
        """
        if not path.exists():
            raise StandingError(f"{path} is missing: put this very key back from a backup, another will not do")
        try:
            return cls(bytes.fromhex(read_private(path).decode().strip()))
        except ValueError:
            raise StandingError(f"{path} does not hold a dropfed key: put the right file back") from None

    @classmethod
    def made_at(cls, path: Path) -> Self:
        """Make a key at ``path``, readable by its owner only, unless there is one; load it.

        Raises:
            StandingError: as ``at``, for a file that is there.
        """
        if not path.exists():
            write_file(path, secrets.token_hex(32).encode(), private=True)
        return cls.at(path)


class SigningKey(KeptKey):
    """A private Ed25519 key."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, body: Json) -> bytes:
        """Return the bytes of the signed record of ``body``."""
        signature = self._key.sign(canonical(body)).hex()
        return canonical({"body": body, "key": self.public, "signature": signature})


def canonical(value: Json) -> bytes:
    """RFC 8785 bytes of a JSON object whose numbers are all integers (floats travel as text)."""
    return rfc8785.dumps(value)


def parse_canonical(content: bytes) -> Json:
    """Parse JSON that must be exactly canonical.

    Raises:
        ValueError: not JSON, not an object, or not the canonical bytes of what it says.
    """
    if not content:
        raise ValueError("is empty")
    try:
        value = json.loads(content, parse_int=_integer, parse_float=_refuse_number, parse_constant=_refuse_number)
        if not isinstance(value, dict) or canonical(value) != content:
            raise ValueError("is not canonical JSON")
    except (RecursionError, rfc8785.CanonicalizationError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("is not canonical JSON") from None
    return value


def open_signed(content: bytes) -> tuple[Json, str]:
    """Return the body of a signed record and the public key that signed it.

    Raises:
        ValueError: not canonical, not of this form, or the signature does not hold.
    """
    record = parse_canonical(content)
    if set(record) != {"body", "key", "signature"} or not isinstance(record["body"], dict):
        raise ValueError("is not a signed record")
    body, key, signature = record["body"], record["key"], record["signature"]
    if not _is_hex(key, 64) or not _is_hex(signature, 128):
        raise ValueError("has no well-formed key and signature")
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), canonical(body))
    except (InvalidSignature, ValueError):
        raise ValueError("its signature does not hold") from None
    return body, key


def enrolment_code(secret: str, federation: str, site: str, key: str) -> str:
    """HMAC-SHA-256 that proves the holder of ``key`` knows the invite's one-time ``secret`` (hex)."""
    message = canonical({"federation": federation, "key": key, "site": site})
    return hmac.new(bytes.fromhex(secret), message, hashlib.sha256).hexdigest()


def digest_of(content: bytes) -> str:
    """SHA-256 of ``content``, 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(key: str) -> str:
    """What people compare of a public key or a digest: its first 16 digits, in groups of four."""
    return in_groups(key[:16])


def in_groups(digits: str) -> str:
    """Hex digits as they are read aloud or compared on paper: in groups of four."""
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _is_hex(value: object, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and all(char in "0123456789abcdef" for char in value)


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or abs(int(text)) > _GREATEST:
        _refuse_number(text)
    return int(text)


def _refuse_number(text: str) -> NoReturn:
    shown = text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}…"
    raise ValueError(f"holds the number {shown}; only integers of at most 2^53 - 1 are allowed")
