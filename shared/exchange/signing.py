"""Keys kept in files, Ed25519 signatures, and signed JSON.

A signed record is one file: the canonical bytes (RFC 8785) of ``{"body": …, "key": hex, "signature": hex}``,
the signature being over the canonical bytes of the body. Nothing but those exact bytes is accepted, so
changing any byte of the file, white space included, is noticed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.doors import Refusal
from shared.doors.json_text import Json, canonical, parse_canonical
from shared.doors.keys import require_public, require_signed
from shared.errors import ActionRequiredError
from shared.exchange.names import MAX_RECORD_BYTES
from shared.folder.durable import read_private, write_file

KEY_FILE, NEW_KEY_FILE = "signing.key", "signing.key.new"
"""Names, in a work directory, of the file with its signing key, and of one that is to take its place."""


class KeptSecret(ABC):
    """32 bytes, made where they are used and kept there in a file that only its owner can read."""

    @abstractmethod
    def __init__(self, private: bytes) -> None: ...

    @classmethod
    @abstractmethod
    def at(cls, path: Path) -> Self:
        """Load what is kept at ``path``.

        Raises:
            ActionRequiredError: it is missing, readable by others, or no such secret.
        """

    @classmethod
    def made_at(cls, path: Path) -> Self:
        """Make a secret at ``path`` unless there is one; load it.

        Raises:
            ActionRequiredError: as ``at``, for a file that is there.
        """
        if not path.exists():
            write_file(path, secrets.token_hex(32).encode(), private=True)
        return cls.at(path)


class KeptKey(KeptSecret):
    """A private key; ``public`` is its public half, 64 hex digits."""

    public: str

    @classmethod
    def at(cls, path: Path) -> Self:
        """Read the signing key at a path, as for any secret that is kept."""
        if not path.exists():
            raise ActionRequiredError(f"{path} is missing: put this very key back from a backup, another will not do")
        try:
            return cls(bytes.fromhex(read_private(path).decode().strip()))
        except ValueError:
            raise ActionRequiredError(f"{path} does not hold a dropfed key: put the right file back") from None


class SigningKey(KeptKey):
    """A private Ed25519 key."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, body: Json) -> bytes:
        """Return the bytes of the signed record of ``body``."""
        signature = self._key.sign(canonical(body)).hex()
        return canonical({"body": body, "key": self.public, "signature": signature})


def open_signed(content: bytes) -> tuple[Json, str]:
    """Return the body of a signed record and the public key that signed it.

    Raises:
        Refusal: too large, not canonical, not of this form, or the signature does not hold.
    """
    record = parse_signed(content)
    body, key = record["body"], record["key"]
    require_signed(canonical(body), key, record["signature"])
    return body, key


def parse_signed(content: bytes) -> Json:
    """Return a record with its ``body``, ``key`` and ``signature``, whether that holds or not.

    Raises:
        Refusal: too large, not canonical, or not of this form.
    """
    record = parse_canonical(content, MAX_RECORD_BYTES)
    if set(record) != {"body", "key", "signature"} or not isinstance(record["body"], dict):
        raise Refusal("is not a signed record")
    return record


def is_public_key(text: str) -> bool:
    """Return whether a text is a public signing key: 64 hex digits, and not everybody can sign under it."""
    try:
        require_public(text)
    except Refusal:
        return False
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def enrolment_code(secret: str, federation: str, site: str, key: str) -> str:
    """Return the HMAC-SHA-256 that proves the holder of ``key`` knows the invite's one-time ``secret`` (hex)."""
    message = canonical({"federation": federation, "key": key, "site": site})
    return hmac.new(bytes.fromhex(secret), message, hashlib.sha256).hexdigest()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of ``content``, 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


def fingerprint(key: str) -> str:
    """Return what people compare of a public key or a digest: its first 16 digits, in groups of four."""
    return in_groups(key[:16])


def in_groups(digits: str) -> str:
    """Return hex digits as they are read aloud or compared on paper: in groups of four."""
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))
