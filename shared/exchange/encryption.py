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

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_keygen,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
    crypto_secretstream_xchacha20poly1305_TAG_FINAL,
    crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
)
from nacl.exceptions import CryptoError
from nacl.utils import random

from shared.errors import ConfigurationError, PoisonError, StandingError
from shared.exchange.names import Place
from shared.exchange.records import Federation, FileEntry, SiteCard
from shared.exchange.signing import KeptKey, canonical
from shared.folder.durable import writing

ENCRYPTION_KEY_FILE = "encryption.key"
BLOCK_BYTES = 1 << 16
_HEADER = crypto_secretstream_xchacha20poly1305_HEADERBYTES
_MORE = crypto_secretstream_xchacha20poly1305_ABYTES  # that a block of ciphertext has
_NONCE, _KEY = 24, 32
_TAGS = (crypto_secretstream_xchacha20poly1305_TAG_MESSAGE, crypto_secretstream_xchacha20poly1305_TAG_FINAL)


class EncryptionKey(KeptKey):
    """A private X25519 key."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def found_at(cls, path: Path) -> EncryptionKey | None:
        """Load the key kept at ``path``; None if there is none.

        Raises:
            StandingError: as ``at``, for a file that is there.
        """
        return cls.at(path) if path.exists() else None

    def shared_with(self, public: str) -> bytes:
        """The 32 bytes that only this key and the other side's yield.

        Raises:
            ValueError: ``public`` is no public key.
        """
        return self._key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))


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

    def wrap(self, content: Content, place: Place, name: str) -> str:
        """What a manifest holds of it, 208 hex digits."""
        nonce, secret = random(_NONCE), content.key + bytes.fromhex(content.sha256)
        bound = self._bound_to(place, name)
        return (nonce + crypto_aead_xchacha20poly1305_ietf_encrypt(secret, bound, nonce, self.key)).hex()

    def unwrap(self, wrapped: str, place: Place, name: str) -> Content:
        """What a manifest holds of a payload.

        Raises:
            PoisonError: it was wrapped by another key, or for another payload.
        """
        sealed, bound = bytes.fromhex(wrapped), self._bound_to(place, name)
        try:
            secret = crypto_aead_xchacha20poly1305_ietf_decrypt(sealed[_NONCE:], bound, sealed[:_NONCE], self.key)
        except CryptoError:
            raise PoisonError(f"{place.path}/{name}", "is encrypted under another key than this run's") from None
        return Content(secret[:_KEY], secret[_KEY:].hex())

    def _bound_to(self, place: Place, name: str) -> bytes:
        return canonical(
            {
                "federation": self.federation,
                "file": name,
                "kind": place.kind,
                "round": place.round_no,
                "run": self.run,
                "site": self.site,
            }
        )


def run_key(own: EncryptionKey | None, federation: Federation, card: SiteCard, run: str) -> RunKey:
    """The key of a run, by either side's private key.

    Raises:
        ConfigurationError: there is none, because a side has shown no key.
        StandingError: ``own`` is neither of the two that were shown.
    """
    site, keys = card.site, (federation.aggregator_encryption_key, card.encryption_key)
    if keys[0] is None or keys[1] is None:
        raise ConfigurationError(
            [
                f"run {run} is to be encrypted, but {site} and the aggregator have shown each other no keys for that, "
                f"as {site} joined with an earlier version: invite it under another name, or do without `encrypt`"
            ]
        )
    if own is None or own.public not in keys:
        raise StandingError(
            f"run {run} is encrypted, and the private key here is not the one that {site} and the aggregator know: put "
            "the very encryption.key back from a backup, another will not do"
        )
    try:
        shared = own.shared_with(keys[1] if own.public == keys[0] else keys[0])
    except ValueError:
        raise ConfigurationError([f"run {run} is to be encrypted, but what {site} has shown is no key"]) from None
    bound = {"aggregator_key": keys[0], "federation": card.federation, "run": run, "site": site, "site_key": keys[1]}
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
        for block, is_last in _blocks(reader, BLOCK_BYTES):
            sealed = crypto_secretstream_xchacha20poly1305_push(state, block, tag=_TAGS[is_last])
            digest.update(sealed)
            of_content.update(block)
            writer.write(sealed)
        size = writer.tell()
    content = Content(content_key, of_content.hexdigest())
    return Ciphertext(target, FileEntry(size=size, sha256=digest.hexdigest()), content)


def decrypted(ciphertext: BinaryIO, content: Content, shown_as: str) -> Iterator[bytes]:
    """What an encrypted file holds, block by block. Only with the last one is it known to be whole.

    Args:
        shown_as: the file's path inside the folder, for the error.

    Raises:
        PoisonError: it is cut off, was changed, or is encrypted under another key.
    """
    header, digest = ciphertext.read(_HEADER), hashlib.sha256()
    state = crypto_secretstream_xchacha20poly1305_state()
    try:
        crypto_secretstream_xchacha20poly1305_init_pull(state, header, content.key)
        for sealed, is_last in _blocks(ciphertext, BLOCK_BYTES + _MORE):
            block, tag = crypto_secretstream_xchacha20poly1305_pull(state, sealed)
            if tag != _TAGS[is_last]:
                raise PoisonError(shown_as, "does not decrypt: it ends too early, or goes on after its end")
            digest.update(block)
            yield block
    except CryptoError:
        raise PoisonError(
            shown_as, "does not decrypt: it is cut off, was changed, or is encrypted under another key"
        ) from None
    if digest.hexdigest() != content.sha256:
        raise PoisonError(shown_as, "decrypts to something else than its sender says")


def decrypt(ciphertext: Path, target: Path, content: Content, shown_as: str) -> None:
    """Write what an encrypted file holds, all or nothing.

    Raises:
        PoisonError: as ``decrypted``; then nothing is written.
    """
    with ciphertext.open("rb") as reader, writing(target) as writer:
        for block in decrypted(reader, content, shown_as):
            writer.write(block)


def content_bytes(entry: FileEntry) -> int:
    """How many bytes a payload has once it is decrypted, by its manifest; below 0 where it cannot be decrypted."""
    if entry.encrypted is None:
        return entry.size
    sealed = entry.size - _HEADER
    return sealed - -(-sealed // (BLOCK_BYTES + _MORE)) * _MORE


def max_ciphertext_bytes(size: int) -> int:
    """The largest file that holds so many bytes encrypted."""
    return _HEADER + size + (size // BLOCK_BYTES + 1) * _MORE


def _blocks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
    """The rest of a file in blocks of ``size`` bytes, of which the last may be shorter, or empty; and which it is."""
    block = file.read(size)
    while True:
        following = file.read(size)
        yield block, not following
        if not following:
            return
        block = following
