"""What of a folder's payloads is encrypted and on its way: ``ciphertext/`` beside the mirror, as it lies in the folder.

Before a message is published, and until a fetched one is decrypted, its ciphertext lies here; afterwards only in the
folder. What it says is in the mirror.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange.encryption import Ciphertext, EncryptionKey, RunKey, decrypt, encrypt, run_key
from shared.exchange.names import FEDERATION, MIRROR, SITE_CARD, MessageRef
from shared.exchange.records.wire import FileEntry
from shared.exchange.trust import Message, open_federation, open_site_card
from shared.folder.durable import link_file


class Ciphertexts:
    """One end of one folder.

    Args:
        home: local directory for ``ciphertext/``; in its ``mirror/`` lies what the two sides have shown each other.
        own: our private key; None where there is none.
    """

    def __init__(self, home: Path, own: EncryptionKey | None) -> None:
        self._mirror = home / MIRROR
        self._home = home / "ciphertext"
        self._own = own
        self._keys: dict[str, RunKey] = {}

    def key(self, run: str) -> RunKey:
        """Return what opens a run in this folder.

        Raises:
            ConfigurationError: there is none, because a side has shown no key.
            ActionRequiredError: our private key is not the one that we have shown.
        """
        if run not in self._keys:
            federation = open_federation((self._mirror / FEDERATION).read_bytes(), aggregator_key=None)
            content = (self._mirror / SITE_CARD).read_bytes()
            card = open_site_card(content, federation=federation.federation, site=federation.site, secret=None)
            self._keys[run] = run_key(self._own, federation, card, run)
        return self._keys[run]

    def folder(self, ref: MessageRef) -> Path:
        """Return where a message's ciphertext lies while it is on its way."""
        return self._home / ref.path

    def encrypt(self, ref: MessageRef, name: str, plain: Path, known: Ciphertext | None) -> FileEntry:
        """Encrypt a payload, or take what is ``known`` of it; return what a manifest says of it.

        Raises:
            ConfigurationError, ActionRequiredError: as ``key``.
        """
        key, target = self.key(ref.run), self.folder(ref) / name
        if known is None:
            known = encrypt(plain, target)
        else:
            link_file(known.path, target)
        return known.entry.model_copy(update={"encrypted": key.wrap(known.content, ref, name)})

    def decrypt(self, message: Message, name: str, target: Path) -> None:
        """Write what a fetched payload says, all or nothing; its ciphertext is needed no more.

        Raises:
            RejectedError: it was changed, or is encrypted under another key.
            ConfigurationError, ActionRequiredError: as ``key``.
        """
        ref, wrapped = message.ref, message.manifest.files[name].encrypted
        if wrapped is None:
            raise ValueError(f"{name} is not encrypted")
        ciphertext = self.folder(ref) / name
        content = self.key(ref.run).unwrap(wrapped, ref, name)
        decrypt(ciphertext, target, content, f"{ref.path}/{name}")
        ciphertext.unlink()

    def check(self, message: Message, name: str, sha256: str) -> None:
        """Compare the SHA-256 of what is here of a decrypted payload with what its sender said, which a key opens.

        Where there is none, nothing is compared, and nothing of the run can be read or sent.

        Raises:
            RejectedError: it is another.
        """
        ref, wrapped = message.ref, message.manifest.files[name].encrypted
        try:
            key = self.key(ref.run)
        except (ConfigurationError, ActionRequiredError, FileNotFoundError):
            return
        if wrapped is not None and key.unwrap(wrapped, ref, name).sha256 != sha256:
            raise RejectedError(f"{ref.path}/{name}", "is not what its sender encrypted (SHA-256 differs)")

    def forget(self, ref: MessageRef) -> None:
        """Remove what is in the folder by now."""
        shutil.rmtree(self.folder(ref), ignore_errors=True)
