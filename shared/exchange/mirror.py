"""What one side knows of one site's folder: a local directory of the folder's shape, which is the exchange's memory.

A message directory in it that has a ``manifest.json`` is done: signed by us, or fetched and verified from the other
side. One without is work in progress and may be written again. After any crash the heads of both chains are read from
here.

A manifest is written once its payloads are on the disk, and once all manifests before it are. So nothing that follows
from a message is signed, or sent, unless the message survives a power cut. That may take seconds of a large model.
Meanwhile the message counts in this process already, and work on it can begin (``accept``). If the power fails before,
the message was never accepted, and is fetched anew: its sender keeps it in the folder until we have answered it.

The mirror stores plaintext. Ciphertext in transit is kept beside it, in ``ciphertext``, and rejected files in
``quarantine``, each with the reason.

The run's own offer alone says which payloads are encrypted. So neither side can send plaintext by mistake where
ciphertext was agreed, or be made to accept it.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from shared.doors.numbers import whole
from shared.errors import ActionRequiredError, RejectedError, TransientError
from shared.exchange.ciphertexts import Ciphertexts
from shared.exchange.encryption import EncryptionKey
from shared.exchange.handovers import enrolled, followed, not_as_it_was_left
from shared.exchange.ledger import Ledger
from shared.exchange.names import AGGREGATOR, MANIFEST, MIRROR, RUN_CONFIGURATION, RUNS, SURVEYS, MessageRef, ref_at
from shared.exchange.records.messages import Head
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import AnyPayload
from shared.exchange.signing import digest_of
from shared.exchange.trust import Message, Peer, check_encrypted, check_file, open_record, open_yaml
from shared.folder.durable import put_in_place, sync_file, write_file
from shared.folder.ownership import make_folder

logger = logging.getLogger(__name__)


class Mirror(Ledger):
    """What this side signed in one folder, and what it accepted or refused of the other.

    Args:
        home: local directory for ``mirror/``, ``ciphertext/`` and ``quarantine/``.
        me: ``aggregator`` or the site's name.
        public_key: of our signing key.
        peer: the other side and its pinned key.
        encryption_key: ours; None where there is none, or nothing encrypted is read.

    Attributes:
        root: where the mirror lies.
        own, peer: either side with all its keys that are known here.
        ciphertexts: what is on its way.
        refused: digests of the messages that were refused for good.

    Raises:
        ActionRequiredError: what lies here is not as it was left.
    """

    def __init__(
        self, home: Path, *, me: str, public_key: str, peer: Peer, encryption_key: EncryptionKey | None = None
    ) -> None:
        super().__init__()
        self.root = home / MIRROR
        self.ciphertexts = Ciphertexts(home, encryption_key)
        self._quarantine = home / "quarantine"
        self._public_key = public_key
        self.peer = followed(peer, self.root)
        self.own = followed(enrolled(Peer(peer.federation, peer.site, me, public_key), self.root), self.root)
        self._configurations: dict[str, RunConfiguration] = {}
        self._on_its_way: tuple[MessageRef, Future[None]] | None = None  # to the disk
        self._turn = Lock()  # at the aggregator, two threads share a mirror
        self._read_messages()
        self.refused = {digest_of(path.read_bytes()) for path in self._quarantine.rglob(MANIFEST)}

    def _read_messages(self) -> None:
        for path in sorted((self.root / RUNS).rglob(MANIFEST)):
            ref = ref_at(path.parent.relative_to(self.root).as_posix())
            if ref is not None:
                sender = self.peer if ref.is_from_site != (self.own.sender != AGGREGATOR) else self.own
                try:
                    self.messages[ref] = sender.open_out_of_order(path.read_bytes(), ref)
                except RejectedError as error:
                    raise not_as_it_was_left(path, error) from None

    # --- either side's messages ----------------------------------------------------------------------------

    @property
    def own_head(self) -> Head:
        """Our last message."""
        return self.head_of(self.own.sender)

    def is_from_another_copy(self, head: Head) -> bool:
        """Return whether a message that our key has signed is missing here, or has the number of another one here."""
        return head.seq > self.own_head.seq or self.has_another(self.own, head)

    def has_another(self, sender: Peer, head: Head) -> bool:
        """Return whether a message here has the number of ``head``, and is another.

        Not of a key that was handed over: what that key has signed was settled then, and it may be in other hands.
        """
        return sender.key_of(head.seq) == sender.newest_key and any(
            message.manifest.seq == head.seq and message.head != head for message in self.sent_by(sender.sender)
        )

    @property
    def peer_head(self) -> Head:
        """The other side's last message that we accepted."""
        return self.head_of(self.peer.sender)

    def own_messages(self) -> list[Message]:
        """Return what we signed, in order."""
        return self.sent_by(self.own.sender)

    def peer_messages(self) -> list[Message]:
        """Return what we accepted of the other side, in its order."""
        return self.sent_by(self.peer.sender)

    def last_from_peer(self) -> Message | None:
        """Return the other side's last accepted message."""
        accepted = self.peer_messages()
        return accepted[-1] if accepted else None

    def is_settled(self, ref: MessageRef) -> bool:
        """Return whether the message at ``ref`` was accepted or refused; neither is ever undone."""
        return self.message(ref) is not None or self.refusal(ref) is not None

    def refusal(self, ref: MessageRef) -> str | None:
        """Return why the message at ``ref`` was refused for good, or None."""
        try:
            return (self._quarantine / ref.path / "reason.txt").read_text("utf-8").strip()
        except FileNotFoundError:
            return None

    @property
    def newest_survey(self) -> int:
        """The number of the newest survey that was signed or accepted; 0 before the first."""
        return max((whole(path.stem.lstrip("0")) for path in (self.root / SURVEYS).glob("[0-9]*.json")), default=0)

    # --- what they say -------------------------------------------------------------------------------------

    def path(self, ref: MessageRef, name: str) -> Path:
        """Return the local path of one file of a message."""
        return self.root / ref.path / name

    def content(self, ref: MessageRef, name: str) -> bytes:
        """Return a small file's decrypted content; of an accepted or signed message it must match the manifest.

        Raises:
            ActionRequiredError: it is missing here, or another.
        """
        path = self.path(ref, name)
        try:
            content = path.read_bytes()
            if (message := self.message(ref)) is not None:
                self._check_said(message, name, len(content), digest_of(content))
        except FileNotFoundError:
            raise not_as_it_was_left(path, RejectedError(name, "is missing")) from None
        except RejectedError as error:
            raise not_as_it_was_left(path, error) from None
        return content

    def parsed(self, content: bytes, kind: type[AnyPayload], path: str) -> AnyPayload:
        record: AnyPayload = _parsed(content, kind, path)
        return record

    def says(self, ref: MessageRef, name: str, size: int, sha256: str) -> bool:
        """Return whether an accepted or signed file's decrypted content has this size and SHA-256.

        Of one that is encrypted nobody can tell without our key: then it counts as what it says.
        """
        try:
            self._check_said(self.messages[ref], name, size, sha256)
        except RejectedError:
            return False
        return True

    def _check_said(self, message: Message, name: str, size: int, sha256: str) -> None:
        """Compare what lies here with its manifest; of what is encrypted, where there is a key for that.

        Raises:
            RejectedError: it is another.
        """
        if message.manifest.files[name].encrypted is None:
            check_file(message, name, size, sha256)
        else:
            self.ciphertexts.check(message, name, sha256)

    def configuration(self, run: str) -> RunConfiguration | None:
        """Return the run's configuration as it was offered, or is being; None if it is another, or ill-formed."""
        offer = MessageRef("offer", run)
        if run not in self._configurations:
            try:
                found = self.record(offer, RunConfiguration)
                if (accepted := self.message(offer)) is None:
                    return found
                check_encrypted(accepted, found.encrypt)
            except (ActionRequiredError, RejectedError):
                return None
            self._configurations[run] = found
        return self._configurations[run]

    def require_configuration(self, run: str) -> RunConfiguration:
        """Return the run's configuration, which says what is encrypted.

        Raises:
            ActionRequiredError: it is not here as it was offered.
        """
        if (configuration := self.configuration(run)) is None:
            raise ActionRequiredError(
                f"{self.path(MessageRef('offer', run), RUN_CONFIGURATION)} says what is encrypted, and is missing or "
                "damaged; nothing is sent or taken until it is back, from the folder or a backup"
            )
        return configuration

    def as_in_folder(self, message: Message, name: str) -> Path:
        """Return where a payload lies, or is to lie, as it is in the folder."""
        if message.manifest.files[name].encrypted is None:
            return self.path(message.ref, name)
        return self.ciphertexts.folder(message.ref) / name

    # --- keys ----------------------------------------------------------------------------------------------

    def require_newest_key(self) -> None:
        """Check that our key is the one that was handed over to last.

        Raises:
            ActionRequiredError: it is another.
        """
        if self._public_key != self.own.newest_key:
            remedy = (
                "if `dropfed-aggregator rotate-key` was cut off, run it again; else put that key back from a backup"
                if self.own.sender == AGGREGATOR
                else "put that very key back from a backup; if nobody here has run `dropfed-site rotate-key`, somebody "
                "else has this site's key: tell the aggregator's people"
            )
            raise ActionRequiredError(
                f"{self.own.sender} signs with the key {self.own.newest_key[:16]}… by now, and another one is here: "
                f"{remedy}"
            )

    def require_keys(self, run: str) -> None:
        """Check that the keys to encrypt and decrypt a run in this folder are there.

        Raises:
            ConfigurationError: there is none, because a side has shown no key.
            ActionRequiredError: our private key is not the one that we have shown.
        """
        self.ciphertexts.key(run)

    # --- what is written here ------------------------------------------------------------------------------

    def add(self, message: Message, manifest: bytes) -> None:
        """Write a manifest, the last file of its message: from here on that is signed or accepted, whatever crashes.

        Raises:
            OSError: it, or what was accepted before it, cannot be written (``flush``).
            TransientError: as ``_require_next``.
        """
        self.flush()
        self._require_next(message)
        self._write(message, manifest)
        self.messages[message.ref] = message

    def accept(self, message: Message, manifest: bytes) -> None:
        """Add an accepted message without waiting for the disk: it counts now, and survives a crash after ``flush``.

        Raises:
            OSError: what was accepted before it cannot be written (``flush``).
            TransientError: as ``_require_next``.
        """
        self.flush()
        self._require_next(message)
        with self._turn:
            writer = ThreadPoolExecutor(1, "to-the-disk")
            self._on_its_way = message.ref, writer.submit(self._write, message, manifest)
            writer.shutdown(wait=False)
            self.messages[message.ref] = message

    def flush(self) -> None:
        """Wait until all that counts here is on the disk.

        Raises:
            OSError: the last message cannot be written. It does not count any more, and is to be fetched anew.
        """
        with self._turn:
            if self._on_its_way is not None:
                ref, written = self._on_its_way
                error = written.exception()
                self._on_its_way = None
                if error is not None:
                    del self.messages[ref]
                    raise error

    def _require_next(self, message: Message) -> None:
        """Check that the other side's message before this one counts still.

        Raises:
            TransientError: it could not be written, of which ``flush`` has told the other thread. It comes first.
        """
        sender = message.manifest.sender
        if sender == self.peer.sender and message.manifest.seq != self.peer_head.seq + 1:
            raise TransientError(f"{message.ref.path}: the message of {sender} before it was not written here")

    def _write(self, message: Message, manifest: bytes) -> None:
        """Write a manifest once its payloads are on the disk; tensor files that nobody needs are not here."""
        for name in message.manifest.files:
            if (path := self.path(message.ref, name)).exists():
                sync_file(path)
        write_file(self.path(message.ref, MANIFEST), manifest)

    def refuse(self, ref: MessageRef, error: RejectedError, manifest: bytes) -> None:
        """Put a message that will never be accepted into quarantine, with the reason."""
        if self.message(ref) is not None:
            raise ValueError(f"{ref.path} was accepted")
        self.flush()
        home = self._quarantine / ref.path
        make_folder(home)
        for fetched in (self.root / ref.path, self.ciphertexts.folder(ref)):
            for path in fetched.iterdir() if fetched.is_dir() else ():
                put_in_place(path, home / path.name)
        write_file(home / MANIFEST, manifest)
        write_file(home / "reason.txt", str(error).encode())
        self.refused.add(digest_of(manifest))
        logger.error("%s: refused %s: %s", self.own.site, ref.path, error)


@lru_cache(maxsize=8)  # asked for at every step, and a long list of tensors takes its time
def _parsed(content: bytes, kind: type[Any], path: str) -> Any:
    return (open_yaml if path.endswith(".yaml") else open_record)(content, kind, path)
