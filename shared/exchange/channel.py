"""One end of one drop folder: sign and publish one way, fetch and verify the other.

Both daemons keep a **mirror**, a local directory of the folder's shape. A message directory in it that has a
``manifest.json`` is done: signed by us, or fetched and verified from the other side. One without is work in
progress and may be written again. So the mirror is the memory of the exchange: after any crash the heads of
both chains are read from it.

The mirror stores plaintext. Ciphertext in transit is kept beside it, in ``ciphertext``, and rejected files in
``quarantine``, each with the reason.

The run's own offer alone says which payloads are encrypted. So neither side can send plaintext by mistake where
ciphertext was agreed, or be made to accept it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from shared.errors import ActionRequiredError, DoubtfulError, NotFoundError, RejectedError, TransientError
from shared.exchange.ciphertexts import Ciphertexts
from shared.exchange.encryption import Ciphertext, EncryptionKey, content_bytes
from shared.exchange.handovers import followed, learn, not_as_it_was_left, publish
from shared.exchange.names import (
    AGGREGATOR,
    CARD,
    KINDS,
    MANIFEST,
    MAX_RECORD_BYTES,
    RUN_CONFIGURATION,
    RUNS,
    MessageRef,
    is_weights,
    may_hold,
    ref_at,
)
from shared.exchange.records.messages import Head, Manifest, Status
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import now_text
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.records.wire import PLAIN, FileEntry, Wire, encrypts
from shared.exchange.retention import may_be_removed
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import Message, Peer, check_encrypted, check_file, open_record, open_yaml
from shared.exchange.weights import entry_of
from shared.folder.contract import SMALL_BYTES, Folder
from shared.folder.durable import link_file, put_in_place, write_file
from shared.sizes import size_text

logger = logging.getLogger(__name__)

ROOM_FOR_MESSAGES = 4  # people are warned when the folder has room for fewer of the present size


class Channel:
    """What one side knows of one site's folder.

    Args:
        home: local directory for ``mirror/``, ``ciphertext/`` and ``quarantine/``.
        me: ``aggregator`` or the site's name.
        key: its signing key; where nothing is signed, the public half is enough.
        peer: the other side and its pinned key.
        encryption_key: ours; None where there is none, or nothing is sent or fetched.
    """

    def __init__(
        self,
        home: Path,
        folder: Folder,
        *,
        me: str,
        key: SigningKey | str,
        peer: Peer,
        encryption_key: EncryptionKey | None = None,
    ) -> None:
        self.mirror = home / "mirror"
        self._ciphertexts = Ciphertexts(home, encryption_key)
        self._quarantine = home / "quarantine"
        self._folder = folder
        self._key = key if isinstance(key, SigningKey) else None
        self._public_key = key.public if isinstance(key, SigningKey) else key
        self._configurations: dict[str, RunConfiguration] = {}
        own = Peer(peer.federation, peer.site, me, self._public_key)
        self._peer = followed(peer, self.mirror) if me == AGGREGATOR else peer
        self._me = own if me == AGGREGATOR else followed(own, self.mirror)
        self._signed = {message.ref: message for message in self._read_mirror()}
        self._refused = {digest_of(path.read_bytes()) for path in self._quarantine.rglob(MANIFEST)}
        self._published: int | None = None  # seq of our last message known to be in the folder
        self._is_nearly_full = False
        self._failed: set[str] = set()  # paths, of messages and of hand-overs, at which something failed before

    # --- what is known -------------------------------------------------------------------------------------

    def message(self, ref: MessageRef) -> Message | None:
        """The message at ``ref`` if it is signed by us, or fetched and verified."""
        return self._signed.get(ref)

    @property
    def own_head(self) -> Head:
        """Our last message."""
        return self._head_of(self._me)

    @property
    def peer_head(self) -> Head:
        """The other side's last message that we accepted."""
        return self._head_of(self._peer)

    @property
    def published_head(self) -> Head:
        """Our last message known to be in the folder."""
        known = [message for message in self._from(self._me) if message.manifest.seq <= (self._published or 0)]
        return max((message.head for message in known), key=lambda head: head.seq, default=Head())

    def last_from_peer(self) -> Message | None:
        """The other side's last accepted message."""
        return max(self._from(self._peer), key=lambda message: message.manifest.seq, default=None)

    def own_messages(self) -> list[Message]:
        """What we signed, in order."""
        return sorted(self._from(self._me), key=lambda message: message.manifest.seq)

    def peer_messages(self) -> list[Message]:
        """What we accepted of the other side, in no order."""
        return self._from(self._peer)

    def path(self, ref: MessageRef, name: str) -> Path:
        """Local path of one file of a message."""
        return self.mirror / ref.path / name

    def content(self, ref: MessageRef, name: str) -> bytes:
        """What one small file of a message says; of an accepted or signed one, only if it is as its manifest says.

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

    def says(self, ref: MessageRef, name: str, size: int, sha256: str) -> bool:
        """Whether a file of an accepted or signed message says what has this size and SHA-256, which are in clear.

        Of one that is encrypted nobody can tell without our key: then it counts as what it says.
        """
        try:
            self._check_said(self._signed[ref], name, size, sha256)
        except RejectedError:
            return False
        return True

    def is_settled(self, ref: MessageRef) -> bool:
        """Whether the message at ``ref`` was accepted or refused; neither is ever undone."""
        return self.message(ref) is not None or self.refusal(ref) is not None

    def refusal(self, ref: MessageRef) -> str | None:
        """Why the message at ``ref`` was refused for good, or None."""
        try:
            return (self._quarantine / ref.path / "reason.txt").read_text("utf-8").strip()
        except FileNotFoundError:
            return None

    @property
    def peer(self) -> Peer:
        """The other side, with all its keys that are known here."""
        return self._peer

    # --- prepare, sign, publish ----------------------------------------------------------------------------

    def sign(
        self,
        ref: MessageRef,
        files: Mapping[str, bytes | Path],
        *,
        in_reply_to: str | None,
        known: Mapping[str, FileEntry] = MappingProxyType({}),
        encrypted: Mapping[str, Ciphertext] = MappingProxyType({}),
        wire: Wire = PLAIN,
    ) -> Message:
        """Write a message into the mirror, manifest last. A message that is signed stays as it is.

        What the run wants encrypted is.

        Args:
            files: content by name; a ``Path`` on the same disk is linked, not copied.
            known: size and hash by name, of files that need not be hashed again.
            encrypted: by name, what need not be encrypted again, if it is to be encrypted at all.
            wire: the form that the run wants its rounds' weights in, and in which they are given here.

        Raises:
            ConfigurationError, ActionRequiredError: it is to be encrypted, and we have not the keys (``require_keys``);
                or nobody can tell, for the run's offer is not in the mirror as it was accepted.
        """
        # 1. What is signed once is never signed otherwise: after a crash the very same bytes go out.
        if (signed := self.message(ref)) is not None:
            return signed
        # 2. The payloads first: a message without a manifest is work in progress, and may be written again.
        required = KINDS[ref.kind].files
        if not required <= set(files) or not all(may_hold(ref.kind, name) for name in files):
            raise ValueError(f"{sorted(files)} is not what belongs into {ref.path}")
        for name, content in files.items():
            _place_file(self.path(ref, name), content)
        configuration = self._configuration(ref.run)
        if configuration is None and ref.kind != "offer":
            raise self._unknown_encryption(ref.run)
        if self._key is None:
            raise ValueError("this end was opened to be read alone")
        # 3. Each is encrypted where the run's offer says so, and named by size and hash as it will lie in the folder.
        entries: dict[str, FileEntry] = {}
        for name in sorted(files):
            path = self.path(ref, name)
            if configuration is not None and encrypts(configuration.encrypt, name):
                entries[name] = self._ciphertexts.encrypt(ref, name, path, encrypted.get(name))
            else:
                entries[name] = known.get(name) or entry_of(path)
        # 4. The manifest continues our chain by exactly one, and says what it answers.
        manifest = Manifest(
            kind=ref.kind,
            federation=self._me.federation,
            site=self._me.site,
            sender=self._me.sender,
            run=ref.run,
            round=ref.round_no,
            seq=self.own_head.seq + 1,
            previous=self.own_head.digest,
            in_reply_to=in_reply_to,
            created=now_text(),
            files={name: entry.model_copy(update={"wire": wire.of(ref.kind, name)}) for name, entry in entries.items()},
        )
        # 5. It is signed and written last.
        content = self._key.sign(manifest.model_dump())
        write_file(self.path(ref, MANIFEST), content)
        message = self._signed[ref] = Message(ref, manifest, digest_of(content))
        return message

    @property
    def has_unpublished(self) -> bool:
        """Whether a signed message is not known to be in the folder yet."""
        return self._published is None or self._published < self.own_head.seq

    def publish(self) -> None:
        """Bring every signed message into the folder, in order, payloads first and the manifest last.

        Raises:
            ActionRequiredError: there is no room for the next message; nothing of it was sent.
        """
        own = self.own_messages()
        was_cut = is_first = self._published is None
        if self._published is None:
            self._published = self._last_in_folder(own)
        for message in own:
            if message.manifest.seq > self._published:
                there = self._sizes_in_folder(message.ref) if was_cut else {}
                was_cut = False
                self._send(message, there)
                self._published = message.manifest.seq
                logger.info("%s: published %s", self._me.site, message.ref.path)
            elif not is_first:
                continue
            self._ciphertexts.forget(message.ref)

    def _send(self, message: Message, there: Mapping[str, int | None]) -> None:
        """Send a message, but not the tensor files that are ``there`` whole since before we were interrupted."""
        due = {
            name: entry
            for name, entry in sorted(message.manifest.files.items())
            if not is_weights(name) or there.get(name) != entry.size
        }
        self._require_room(message.ref, sum(entry.size for entry in due.values()))
        for name, entry in due.items():
            path = f"{message.ref.path}/{name}"
            self._folder.upload(path, self._as_in_folder(message, name), sha256=entry.sha256)
        self._folder.create(message.ref.manifest, self.path(message.ref, MANIFEST).read_bytes())

    def _require_room(self, ref: MessageRef, size: int) -> None:
        """Never begin what cannot be ended; say in time when the folder is getting full."""
        if size <= SMALL_BYTES:
            return
        room = self._folder.room()
        if room is None:
            return
        where = f"{self._me.site}: the folder has room for {size_text(room)}"
        if room < size:
            raise ActionRequiredError(
                f"{where}, {ref.path} needs {size_text(size)}: free some, or have the quota raised"
            )
        if room < ROOM_FOR_MESSAGES * size and not self._is_nearly_full:
            logger.warning("%s, enough for %d of the size of the present message", where, room // size)
        self._is_nearly_full = room < ROOM_FOR_MESSAGES * size

    def prune(self, run: str) -> None:
        """Remove the tensor files that the run's rule no longer keeps: ours from the folder, all from the mirror.

        Nothing is removed on the word of an offer or a card that is not well-formed.
        """
        final, rule = MessageRef("final", run), self._configuration(run)
        if self.message(MessageRef("offer", run)) is None or rule is None:
            return
        try:
            card = self.path(final, CARD).read_bytes() if self.message(final) else None
            chosen = open_record(card, FinalCard, f"{final.path}/{CARD}").chosen_round if card else None
        except RejectedError:
            return
        known = [message for message in list(self._signed.values()) if message.ref.run == run]
        settled = {
            message.ref.round_no for message in known if message.ref.kind == "verdict" and self._is_in_folder(message)
        }
        for message in known:
            if may_be_removed(rule.keep, message.ref, settled=settled, chosen=chosen, difference=rule.wire.difference):
                for name in sorted(filter(is_weights, message.manifest.files)):
                    self._remove(message, name)

    def _is_in_folder(self, message: Message) -> bool:
        return message.manifest.sender != self._me.sender or message.manifest.seq <= (self._published or 0)

    def _remove(self, message: Message, name: str) -> None:
        path = self.path(message.ref, name)
        if path.exists():
            if message.manifest.sender == self._me.sender:
                self._folder.remove(f"{message.ref.path}/{name}")
            path.unlink()
            logger.info("%s: removed %s/%s, as the run's rule says", self._me.site, message.ref.path, name)

    def adopt(self, refs: Iterable[MessageRef]) -> None:
        """Take back what we signed and published at ``refs`` but no longer have: a lost mirror never forks the chain.

        Raises:
            RejectedError: what lies there is not ours, or not whole.
        """
        found = []
        for ref in refs:
            manifest = self.notice(ref) if self.message(ref) is None else None
            if manifest is not None:
                found.append((self._me.open_out_of_order(manifest, ref), manifest))
        for message, manifest in sorted(found, key=lambda pair: pair[0].manifest.seq):
            for name in message.manifest.files:
                try:
                    sha256 = self._bring(message, name)
                except NotFoundError:
                    if is_weights(name):  # removed by the run's rule
                        continue
                    raise
                self._check_brought(message, name, sha256)
            write_file(self.path(message.ref, MANIFEST), manifest)
            self._signed[message.ref] = message
            logger.warning("%s: took %s back from the folder", self._me.site, message.ref.path)

    # --- notice, fetch, verify -----------------------------------------------------------------------------

    def notice(self, ref: MessageRef) -> bytes | None:
        """The manifest's bytes if the other side has published a message at ``ref``; one small request."""
        try:
            return self._folder.read(ref.manifest, max_bytes=MAX_RECORD_BYTES)
        except NotFoundError:
            return None

    def fetch(
        self,
        ref: MessageRef,
        manifest: bytes,
        *,
        answers: Collection[str | None],
        max_weights_bytes: int,
        without_weights: bool = False,
    ) -> Message | None:
        """Verify a noticed manifest, bring its payloads into the mirror, verify them, and accept the message.

        Args:
            answers: digests of our messages one of which it must answer; None stands for none.
            max_weights_bytes: all tensor files together may be no larger; everything else is at most
                ``MAX_RECORD_BYTES``.
            without_weights: nobody here needs the tensor files: they are not brought, and need not be there any more.

        Returns:
            The message, or None when something failed that a second look may cure (a torn read).

        Raises:
            RejectedError: the sender has signed what no such message may be; it will never be accepted.
            DoubtfulError: manifest or payloads failed twice, which may not be the sender's doing.
            TransientError: they did, but the folder lists the file otherwise.
        """
        if (accepted := self.message(ref)) is not None:
            return accepted
        # 1. The manifest passes the only door before a byte of a payload is asked for. What is wrong once may be a torn
        #    read; what is wrong twice is reported.
        try:
            message = self._peer.open(manifest, ref, head=self.peer_head, answers=answers, refused=self._refused)
            if ref.kind != "offer":
                self._check_encrypted(message)
        except DoubtfulError:
            if not self._learn_keys() and self._fails_again(ref.path):
                self._require_listed(ref.manifest, len(manifest))
                raise
            return None
        # 2. Sizes are checked by the signed manifest before the payload is fetched, so that none can fill the disk.
        room = max_weights_bytes
        for name, entry in sorted(message.manifest.files.items()):
            if without_weights and is_weights(name):
                continue
            path = f"{ref.path}/{name}"
            most = room if is_weights(name) else MAX_RECORD_BYTES
            if content_bytes(entry) > most:
                raise RejectedError(path, f"has {content_bytes(entry)} bytes, at most {most} are expected")
            room -= content_bytes(entry) if is_weights(name) else 0
            # 3. Each payload arrives under a temporary name and takes its own once size, hash and form are right.
            try:
                self._check_brought(message, name, self._bring(message, name))
            except DoubtfulError:
                if self._fails_again(ref.path):
                    raise
                return None
            except NotFoundError:
                if self._fails_again(ref.path):
                    self._require_listed(path, None)
                    raise DoubtfulError(path, "is named by its manifest but is not there") from None
                return None
        if ref.kind == "offer":  # whose own payload says what the run encrypts
            self._check_encrypted(message)
        # 4. The manifest is written last: from here on the message is accepted, whatever crashes.
        write_file(self.path(ref, MANIFEST), manifest)
        self._signed[ref] = message
        logger.info("%s: received %s", self._me.site, ref.path)
        return message

    def is_signed(self, ref: MessageRef, manifest: bytes) -> bool:
        """Whether the other side has signed a noticed manifest for this place."""
        return self._number_of(ref, manifest) is not None

    def skips_messages(self, ref: MessageRef, manifest: bytes) -> bool:
        """Whether a noticed manifest is well signed but others of its sender come before it."""
        number = self._number_of(ref, manifest)
        return number is not None and number > self.peer_head.seq + 1

    def _number_of(self, ref: MessageRef, manifest: bytes) -> int | None:
        """The number of a noticed manifest among its sender's; None of one that is not well signed."""
        try:
            return self._peer.open_out_of_order(manifest, ref).manifest.seq
        except RejectedError:
            return None

    def refuse(self, ref: MessageRef, error: RejectedError, manifest: bytes) -> None:
        """Put a message that will never be accepted into quarantine, with the reason."""
        if self.message(ref) is not None:
            raise ValueError(f"{ref.path} was accepted")
        home = self._quarantine / ref.path
        home.mkdir(parents=True, exist_ok=True)
        for fetched in (self.mirror / ref.path, self._ciphertexts.folder(ref)):
            for path in fetched.iterdir() if fetched.is_dir() else ():
                put_in_place(path, home / path.name)
        write_file(home / MANIFEST, manifest)
        write_file(home / "reason.txt", str(error).encode())
        self._refused.add(digest_of(manifest))
        logger.error("%s: refused %s: %s", self._me.site, ref.path, error)

    def _fails_again(self, path: str) -> bool:
        """A first failure may be a torn read; a second one is told, whatever came.

        Whoever writes in the folder could else have a message fail otherwise each time, and be waited for for ever.
        """
        failed_before = path in self._failed
        self._failed.add(path)
        return failed_before

    def _require_listed(self, path: str, size: int | None) -> None:
        """Check that the listing confirms this size (None: no such file); if not, a proxy is altering the file.

        Raises:
            TransientError: it lists it otherwise.
        """
        folder, _, name = path.rpartition("/")
        try:
            if {entry.name: entry.size for entry in self._folder.list(folder)}.get(name) == size:
                return
        except NotFoundError:
            pass  # though a manifest was read there
        raise TransientError(f"{path} does not come as the folder lists it: something on the way changes it.")

    def open_status(self, content: bytes) -> Status:
        """The heartbeat of the site that is the other side.

        Raises:
            RejectedError: signature or names do not hold.
        """
        try:
            return self._peer.open_status(content)
        except RejectedError:
            if not self._learn_keys():
                raise
            return self._peer.open_status(content)

    # --- a site's later keys -------------------------------------------------------------------------------

    def publish_keys(self) -> None:
        """As the site: put our hand-overs into the folder, and learn those of it that a lost mirror does not have.

        Raises:
            RejectedError: what is there is no hand-over by our key.
            ActionRequiredError: our key was handed over to one that we do not have.
        """
        publish(self._folder, self.mirror)
        self._me = learn(followed(self._me, self.mirror), self._folder, self.mirror, accepted=self.own_head)
        self.require_newest_key()

    def require_newest_key(self) -> None:
        """Demand that our key is the one that was handed over to last.

        Raises:
            ActionRequiredError: it is another.
        """
        if self._public_key != self._me.newest_key:
            raise ActionRequiredError(
                f"{self._me.sender} signs with the key {self._me.newest_key[:16]}… by now, and another one is here: "
                "put that very key back from a backup; if nobody here has run `dropfed-site rotate-key`, somebody else "
                "has this site's key: tell the aggregator's people"
            )

    def _learn_keys(self) -> bool:
        """As the aggregator: look for further keys of the site; return whether there is one."""
        if self._me.sender != AGGREGATOR:
            return False
        before = self._peer
        try:
            self._peer = learn(before, self._folder, self.mirror, accepted=self.peer_head)
        except RejectedError as error:
            if not self._fails_again(error.file):
                logger.warning("%s: %s; it is not followed", self._me.site, error)
        return self._peer != before

    # --- encryption ----------------------------------------------------------------------------------------

    def require_keys(self, run: str) -> None:
        """Demand what it takes to encrypt and decrypt a run in this folder.

        Raises:
            ConfigurationError: there is none, because a side has shown no key.
            ActionRequiredError: our private key is not the one that we have shown.
        """
        self._ciphertexts.key(run)

    def _check_encrypted(self, message: Message) -> None:
        configuration = self._configuration(message.ref.run)
        if configuration is not None:
            check_encrypted(message, configuration.encrypt)
        elif message.ref.kind != "offer":  # whose reader refuses it
            raise self._unknown_encryption(message.ref.run)

    def _unknown_encryption(self, run: str) -> ActionRequiredError:
        return ActionRequiredError(
            f"{self.path(MessageRef('offer', run), RUN_CONFIGURATION)} says what is encrypted, and is missing or "
            "damaged; nothing is sent or taken until it is back, from the folder or a backup"
        )

    def _as_in_folder(self, message: Message, name: str) -> Path:
        """Where a payload lies, or is to lie, as it is in the folder."""
        if message.manifest.files[name].encrypted is None:
            return self.path(message.ref, name)
        return self._ciphertexts.folder(message.ref) / name

    def _bring(self, message: Message, name: str) -> str:
        """Bring a payload here as it is in the folder; return its SHA-256.

        Raises:
            DoubtfulError: it has another size than its manifest says.
            NotFoundError: it is not there.
        """
        path, size = f"{message.ref.path}/{name}", message.manifest.files[name].size
        try:
            return self._folder.download(path, self._as_in_folder(message, name), size=size)
        except RejectedError as error:
            raise DoubtfulError(error.file, error.reason) from None

    def _check_brought(self, message: Message, name: str, sha256: str) -> None:
        """Compare a payload with its manifest and, if it is encrypted, put what it says into the mirror.

        Raises:
            DoubtfulError: it is another.
            RejectedError: it does not decrypt.
        """
        entry = message.manifest.files[name]
        check_file(message, name, entry.size, sha256)
        if entry.encrypted is not None:
            self._ciphertexts.decrypt(message, name, self.path(message.ref, name))

    def _check_said(self, message: Message, name: str, size: int, sha256: str) -> None:
        """Compare what lies in the mirror with its manifest; of what is encrypted, where there is a key for that.

        Raises:
            RejectedError: it is another.
        """
        if message.manifest.files[name].encrypted is None:
            check_file(message, name, size, sha256)
        else:
            self._ciphertexts.check(message, name, sha256)

    # --- the mirror ----------------------------------------------------------------------------------------

    def _configuration(self, run: str) -> RunConfiguration | None:
        """The run's configuration as it was offered, or is being; None where it is not that, or not well-formed."""
        offer = MessageRef("offer", run)
        if run not in self._configurations:
            try:
                content = self.content(offer, RUN_CONFIGURATION)
                found = open_yaml(content, RunConfiguration, f"{offer.path}/{RUN_CONFIGURATION}")
                if (accepted := self.message(offer)) is None:
                    return found
                check_encrypted(accepted, found.encrypt)
            except (ActionRequiredError, RejectedError):
                return None
            self._configurations[run] = found
        return self._configurations[run]

    def _from(self, sender: Peer) -> list[Message]:
        known = list(self._signed.values())  # a copy: at the aggregator, two threads share a channel
        return [message for message in known if message.manifest.sender == sender.sender]

    def _head_of(self, sender: Peer) -> Head:
        return max((message.head for message in self._from(sender)), key=lambda head: head.seq, default=Head())

    def _read_mirror(self) -> list[Message]:
        messages = []
        for path in sorted((self.mirror / RUNS).rglob(MANIFEST)):
            ref = ref_at(path.parent.relative_to(self.mirror).as_posix())
            if ref is not None:
                sender = self._peer if ref.is_from_site != (self._me.sender != AGGREGATOR) else self._me
                try:
                    messages.append(sender.open_out_of_order(path.read_bytes(), ref))
                except RejectedError as error:
                    raise not_as_it_was_left(path, error) from None
        return messages

    def _sizes_in_folder(self, ref: MessageRef) -> dict[str, int | None]:
        try:
            return {entry.name: entry.size for entry in self._folder.list(ref.path)}
        except NotFoundError:
            return {}

    def _last_in_folder(self, own: list[Message]) -> int:
        """Seq of our newest message whose manifest is in the folder: publishing goes in order, so look back."""
        for message in reversed(own):
            if self.notice(message.ref) is not None:
                return message.manifest.seq
        return 0


def _place_file(path: Path, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        write_file(path, content)
    elif content != path:
        link_file(content, path, durable=False)  # the manifest follows
