"""What is encrypted: wrapped keys, and payloads of any size that are opened block by block.

wrapped    XChaCha20-Poly1305: a nonce of 24 bytes, then what it holds and 16 bytes
payload    libsodium's secretstream: a header of 24 bytes, then blocks, each 17 bytes longer than what it holds
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_state,
    crypto_secretstream_xchacha20poly1305_TAG_FINAL,
    crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
)

from shared.doors import Refusal, door

BLOCK_BYTES = 1 << 16
HEADER_BYTES = crypto_secretstream_xchacha20poly1305_HEADERBYTES
MORE_BYTES = crypto_secretstream_xchacha20poly1305_ABYTES  # that a block of ciphertext has
NONCE_BYTES = 24
TAGS = (crypto_secretstream_xchacha20poly1305_TAG_MESSAGE, crypto_secretstream_xchacha20poly1305_TAG_FINAL)
"""Of a block that others follow, and of the last one."""

_DAMAGED = "does not decrypt: it is cut off, was changed, or is encrypted under another key"


@door("is encrypted under another key than this run's")
def unwrapped(sealed: bytes, bound: bytes, key: bytes) -> bytes:
    """Return the secret that is wrapped, in clear.

    Args:
        bound: what it was wrapped for.

    Raises:
        Refusal: it was wrapped by another key, or for something else.
    """
    return crypto_aead_xchacha20poly1305_ietf_decrypt(sealed[NONCE_BYTES:], bound, sealed[:NONCE_BYTES], key)


def opened(ciphertext: BinaryIO, key: bytes) -> Iterator[bytes]:
    """Yield what an encrypted payload holds, block by block. Only with the last one is it known to be whole.

    Raises:
        Refusal: it is cut off, was changed, or is encrypted under another key.
    """
    with door(_DAMAGED):
        state = crypto_secretstream_xchacha20poly1305_state()
        crypto_secretstream_xchacha20poly1305_init_pull(state, ciphertext.read(HEADER_BYTES), key)
        for sealed, is_last in blocks(ciphertext, BLOCK_BYTES + MORE_BYTES):
            block, tag = crypto_secretstream_xchacha20poly1305_pull(state, sealed)
            if tag != TAGS[is_last]:
                raise Refusal("does not decrypt: it ends too early, or goes on after its end")
            yield block


def blocks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the rest of a file in blocks of ``size`` bytes, and which is the last, which may be shorter or empty."""
    block = file.read(size)
    while True:
        following = file.read(size)
        yield block, not following
        if not following:
            return
        block = following
