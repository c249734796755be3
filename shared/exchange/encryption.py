"""Encryption from site to aggregator: whoever runs the server of a folder cannot read what a run has encrypted in it.

From the outside in:

    run key      HKDF-SHA-256 of the X25519 of one side's private and the other side's public key, which is the same
                 from either end; bound to federation, site, run and both public keys. It opens one run in one folder
    content key  32 random bytes of one payload. Its manifest holds it, and the SHA-256 of what the payload says,
                 wrapped: XChaCha20-Poly1305 under the run key, bound to federation, site, run, round, kind and name
    payload      libsodium's secretstream (XChaCha20-Poly1305) under the content key: a header of 24 bytes, then blocks
                 of 64 KiB, of which only the last is shorter; each is 17 bytes longer than what it holds, and the last
                 says that it is the last

The same ciphertext can lie in the folders of several sites, for only the wrapped keys differ. What is signed, hashed
and bounded is what lies in the folder. Encryption is the outermost form: rounding, differences and compression
(``encoding.py``) come before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_keygen,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)
from nacl.utils import random

from shared.doors import Refusal, ciphertext, keys
from shared.doors.ciphertext import BLOCK_BYTES, HEADER_BYTES, MORE_BYTES, NONCE_BYTES
from shared.doors.json_text import canonical
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Federation, SiteCard
from shared.exchange.records.wire import FileEntry
from shared.exchange.signing import KeptKey
from shared.folder.durable import writing

ENCRYPTION_KEY_FILE = "encryption.key"
_KEY = 32  # bytes


class EncryptionKey(KeptKey):
    """A private X25519 key."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def found_at(cls, path: Path) -> EncryptionKey | None:
        """Load the key kept at ``path``; None if there is none.

        Raises:
            ActionRequiredError: as ``at``, for a file that is there.
        """
        return cls.at(path) if path.exists() and not path.is_fifo() else None  # of a pipe nobody would see an end

    def shared_with(self, public: str) -> bytes:
        """Return the 32 bytes that only this key and the other side's yield.

        Raises:
            Refusal: ``public`` is no public key.
        """
        return keys.agreed(self._key, public)


@dataclass(frozen=True)
class Content:
    """What decrypts a payload, and the SHA-256 (hex) of what it then says."""

    key: bytes
    sha256: str


@dataclass(frozen=True)
class RunKey:
    """What opens the payloads of one run in one folder."""

    federation: str
    site: str
    run: str
    key: bytes

    def wrap(self, content: Content, ref: MessageRef, name: str) -> str:
        """Return a payload's key and SHA-256 as its manifest holds them: encrypted, 208 hex digits."""
        nonce, secret = random(NONCE_BYTES), content.key + bytes.fromhex(content.sha256)
        bound = self._bound_to(ref, name)
        return (nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(secret, bound, nonce, self.key)).hex()

    def unwrap(self, wrapped: str, ref: MessageRef, name: str) -> Content:
        """Return a payload's key and SHA-256 from what its manifest holds.

        Raises:
            RejectedError: it was wrapped by another key, or for another payload.
        """
        try:
            secret = ciphertext.unwrapped(bytes.fromhex(wrapped), self._bound_to(ref, name), self.key)
        except Refusal as refusal:
            raise RejectedError(f"{ref.path}/{name}", str(refusal)) from None
        return Content(secret[:_KEY], secret[_KEY:].hex())

    def _bound_to(self, ref: MessageRef, name: str) -> bytes:
        return canonical(
            {
                "federation": self.federation,
                "file": name,
                "kind": ref.kind,
                "round": ref.round_no,
                "run": self.run,
                "site": self.site,
            }
        )


def run_key(own: EncryptionKey | None, federation: Federation, card: SiteCard, run: str) -> RunKey:
    """Return the key of a run, by either side's private key.

    Raises:
        ConfigurationError: there is none, because a side has shown no key.
        ActionRequiredError: ``own`` is None, or neither of the two that were shown.
    """
    site, (aggregators, sites) = card.site, (federation.aggregator_encryption_key, card.encryption_key)
    if aggregators is None or sites is None:
        raise ConfigurationError(
            [
                f"run {run} is to be encrypted, but {site} and the aggregator have shown each other no keys for that, "
                f"as {site} joined with an earlier version: invite it under another name, or do without `encrypt`"
            ]
        )
    if own is None or own.public not in (aggregators, sites):
        raise ActionRequiredError(
            f"run {run} is encrypted, and {ENCRYPTION_KEY_FILE} here is missing, or another than {site} and the "
            f"aggregator know: put the very {ENCRYPTION_KEY_FILE} back from a backup, another will not do"
        )
    try:
        shared = own.shared_with(sites if own.public == aggregators else aggregators)
    except Refusal:
        raise ConfigurationError([f"run {run} is to be encrypted, but what {site} has shown is no key"]) from None
    names = {"federation": card.federation, "run": run, "site": site}
    bound = names | {"aggregator_key": aggregators, "site_key": sites}
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"dropfed 1 run key " + canonical(bound))
    return RunKey(card.federation, site, run, derivation.derive(shared))


@dataclass(frozen=True)
class Ciphertext:
    """An encrypted file, what a manifest says of it, and what decrypts it, which is kept nowhere but in manifests."""

    path: Path
    entry: FileEntry
    content: Content


def encrypt(plain: Path, target: Path) -> Ciphertext:
    """Encrypt a file of any size block by block, all or nothing, under a new content key."""
    content_key = crypto_secretstream_xchacha20poly1305_keygen()
    state = crypto_secretstream_xchacha20poly1305_state()
    header = crypto_secretstream_xchacha20poly1305_init_push(state, content_key)
    digest, of_content = hashlib.sha256(header), hashlib.sha256()
    with plain.open("rb") as reader, writing(target) as writer:
        writer.write(header)
        for block, is_last in ciphertext.blocks(reader, BLOCK_BYTES):
            sealed = crypto_secretstream_xchacha20poly1305_push(state, block, tag=ciphertext.TAGS[is_last])
            digest.update(sealed)
            of_content.update(block)
            writer.write(sealed)
        size = writer.tell()
    content = Content(content_key, of_content.hexdigest())
    return Ciphertext(target, FileEntry(size=size, sha256=digest.hexdigest()), content)


def decrypted(encrypted: BinaryIO, content: Content, shown_as: str) -> Iterator[bytes]:
    """Yield what an encrypted file holds, block by block. Only with the last one is it known to be whole.

    Args:
        shown_as: the file's path inside the folder, for the error.

    Raises:
        RejectedError: it is cut off, was changed, or is encrypted under another key.
    """
    digest = hashlib.sha256()
    try:
        for block in ciphertext.opened(encrypted, content.key):
            digest.update(block)
            yield block
    except Refusal as refusal:
        raise RejectedError(shown_as, str(refusal)) from None
    if digest.hexdigest() != content.sha256:
        raise RejectedError(shown_as, "decrypts to something else than its sender says")


def decrypt(encrypted: Path, target: Path, content: Content, shown_as: str) -> None:
    """Write what an encrypted file holds, all or nothing; it need not be on the disk yet.

    Raises:
        RejectedError: as ``decrypted``; then nothing is written.
    """
    with encrypted.open("rb") as reader, writing(target, durable=False) as writer:
        for block in decrypted(reader, content, shown_as):
            writer.write(block)


def content_bytes(entry: FileEntry) -> int:
    """Return how many bytes a payload has once it is decrypted, by its manifest; below 0 if it cannot be decrypted."""
    if entry.encrypted is None:
        return entry.size
    sealed = entry.size - HEADER_BYTES
    return sealed - -(-sealed // (BLOCK_BYTES + MORE_BYTES)) * MORE_BYTES


def max_ciphertext_bytes(size: int) -> int:
    """Return the largest file that holds so many bytes encrypted."""
    return HEADER_BYTES + size + (size // BLOCK_BYTES + 1) * MORE_BYTES
