"""One end of one drop folder: seal and publish one way, fetch and verify the other.

Both daemons keep a **mirror**, a local directory of the folder's shape. A message directory in it that has a
``manifest.json`` is done: sealed by us, or fetched and verified from the other side. One without is work in
progress and may be written again. So the mirror is the memory of the exchange: after any crash the heads of
both chains are read from it.

The mirror holds what is meant: of a payload that is encrypted in the folder, what it says. Beside the mirror lies what
of such payloads is on its way, **ciphertext**, as it lies in the folder; and **quarantine**, with what was refused and
why.

Which payloads are encrypted the run's own offer says, and nobody else is asked: so neither side can send by mistake
what was to be encrypted, nor be made to take it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from shared.errors import DoubtfulError, NotFoundError, PassingError, PoisonError, StandingError
from shared.exchange.ciphertexts import Ciphertexts
from shared.exchange.encryption import Ciphertext, EncryptionKey, content_bytes
from shared.exchange.handovers import followed, learn, not_as_it_was_left, publish
from shared.exchange.names import (
    AGGREGATOR,
    CARD,
    MANIFEST,
    MAX_RECORD_BYTES,
    REQUIRED,
    RUN_CONFIGURATION,
    RUNS,
    Place,
    is_weights,
    may_hold,
    place_at,
)
from shared.exchange.records import (
    PLAIN,
    FileEntry,
    FinalCard,
    Head,
    Manifest,
    RunConfiguration,
    Status,
    Wire,
    encrypts,
    now_text,
)
from shared.exchange.retention import may_be_removed
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import (
    Correspondent,
    Message,
    check_encrypted,
    check_file,
    open_record,
    open_yaml,
)
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
        key: its signing key; where nothing is sealed, the public half is enough.
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
        peer: Correspondent,
        encryption_key: EncryptionKey | None = None,
    ) -> None:
        self.mirror = home / "mirror"
        self._ciphertexts = Ciphertexts(home, encryption_key)
        self._quarantine = home / "quarantine"
        self._folder = folder
        self._key = key if isinstance(key, SigningKey) else None
        self._public_key = key.public if isinstance(key, SigningKey) else key
        self._configurations: dict[str, RunConfiguration] = {}
        own = Correspondent(peer.federation, peer.site, me, self._public_key)
        self._peer = followed(peer, self.mirror) if me == AGGREGATOR else peer
        self._me = own if me == AGGREGATOR else followed(own, self.mirror)
        self._sealed = {message.place: message for message in self._read_mirror()}
        self._refused = {digest_of(path.read_bytes()) for path in self._quarantine.rglob(MANIFEST)}
        self._published: int | None = None  # seq of our last message known to be in the folder
        self._is_nearly_full = False
        self._failed: set[str] = set()  # paths, of messages and of hand-overs, at which something failed before

    # --- what is known -------------------------------------------------------------------------------------

    def message(self, place: Place) -> Message | None:
        """The message at ``place`` if it is sealed by us, or fetched and verified."""
        return self._sealed.get(place)

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
        """What we sealed, in order."""
        return sorted(self._from(self._me), key=lambda message: message.manifest.seq)

    def peer_messages(self) -> list[Message]:
        """What we accepted of the other side, in no order."""
        return self._from(self._peer)

    def path(self, place: Place, name: str) -> Path:
        """Local path of one file of a message."""
        return self.mirror / place.path / name

    def content(self, place: Place, name: str) -> bytes:
        """What one small file of a message says; of an accepted or sealed one, only if it is as its manifest says.

        Raises:
            StandingError: it is missing here, or another.
        """
        path = self.path(place, name)
        try:
            content = path.read_bytes()
            if (message := self.message(place)) is not None:
                self._check_said(message, name, len(content), digest_of(content))
        except FileNotFoundError:
            raise not_as_it_was_left(path, PoisonError(name, "is missing")) from None
        except PoisonError as error:
            raise not_as_it_was_left(path, error) from None
        return content

    def says(self, place: Place, name: str, size: int, sha256: str) -> bool:
        """Whether a file of an accepted or sealed message says what has this size and SHA-256, which are in clear.

        Of one that is encrypted nobody can tell without our key: then it counts as what it says.
        """
        try:
            self._check_said(self._sealed[place], name, size, sha256)
        except PoisonError:
            return False
        return True

    def is_settled(self, place: Place) -> bool:
        """Whether the message at ``place`` was accepted or refused; neither is ever undone."""
        return self.message(place) is not None or self.refusal(place) is not None

    def refusal(self, place: Place) -> str | None:
        """Why the message at ``place`` was refused for good, or None."""
        try:
            return (self._quarantine / place.path / "reason.txt").read_text("utf-8").strip()
        except FileNotFoundError:
            return None

    @property
    def peer(self) -> Correspondent:
        """The other side, with all its keys that are known here."""
        return self._peer

    # --- prepare, seal, publish ----------------------------------------------------------------------------

    def seal(
        self,
        place: Place,
        files: Mapping[str, bytes | Path],
        *,
        in_reply_to: str | None,
        known: Mapping[str, FileEntry] = MappingProxyType({}),
        encrypted: Mapping[str, Ciphertext] = MappingProxyType({}),
        wire: Wire = PLAIN,
    ) -> Message:
        """Write a message into the mirror, manifest last. A message that is sealed stays as it is.

        What the run wants encrypted is.

        Args:
            files: content by name; a ``Path`` on the same disk is linked, not copied.
            known: size and hash by name, of files that need not be hashed again.
            encrypted: by name, what need not be encrypted again, if it is to be encrypted at all.
            wire: the form that the run wants its rounds' weights in, and in which they are given here.

        Raises:
            ConfigurationError, StandingError: it is to be encrypted, and we have not the keys (``demand_keys``); or
                nobody can tell, for the run's offer is not in the mirror as it was accepted.
        """
        if (sealed := self.message(place)) is not None:
            return sealed
        required = REQUIRED[place.kind]
        if not required <= set(files) or not all(may_hold(place.kind, name) for name in files):
            raise ValueError(f"{sorted(files)} is not what belongs into {place.path}")
        for name, content in files.items():
            _place_file(self.path(place, name), content)
        configuration = self._configuration(place.run)
        if configuration is None and place.kind != "offer":
            raise self._unknown_encryption(place.run)
        if self._key is None:
            raise ValueError("this end was opened to be read alone")
        entries: dict[str, FileEntry] = {}
        for name in sorted(files):
            path = self.path(place, name)
            if configuration is not None and encrypts(configuration.encrypt, name):
                entries[name] = self._ciphertexts.encrypt(place, name, path, encrypted.get(name))
            else:
                entries[name] = known.get(name) or entry_of(path)
        manifest = Manifest(
            kind=place.kind,
            federation=self._me.federation,
            site=self._me.site,
            sender=self._me.sender,
            run=place.run,
            round=place.round_no,
            seq=self.own_head.seq + 1,
            previous=self.own_head.digest,
            in_reply_to=in_reply_to,
            created=now_text(),
            files={
                name: entry.model_copy(update={"wire": wire.of(place.kind, name)}) for name, entry in entries.items()
            },
        )
        content = self._key.sign(manifest.model_dump())
        write_file(self.path(place, MANIFEST), content)
        message = self._sealed[place] = Message(place, manifest, digest_of(content))
        return message

    @property
    def has_unpublished(self) -> bool:
        """Whether a sealed message is not known to be in the folder yet."""
        return self._published is None or self._published < self.own_head.seq

    def publish(self) -> None:
        """Bring every sealed message into the folder, in order, payloads first and the manifest last.

        Raises:
            StandingError: there is no room for the next message; nothing of it was sent.
        """
        own = self.own_messages()
        was_cut = is_first = self._published is None
        if self._published is None:
            self._published = self._last_in_folder(own)
        for message in own:
            if message.manifest.seq > self._published:
                there = self._sizes_in_folder(message.place) if was_cut else {}
                was_cut = False
                self._send(message, there)
                self._published = message.manifest.seq
                logger.info("%s: published %s", self._me.site, message.place.path)
            elif not is_first:
                continue
            self._ciphertexts.forget(message.place)

    def _send(self, message: Message, there: Mapping[str, int | None]) -> None:
        """Send a message, but not the tensor files that are ``there`` whole since before we were interrupted."""
        due = {
            name: entry
            for name, entry in sorted(message.manifest.files.items())
            if not is_weights(name) or there.get(name) != entry.size
        }
        self._demand_room(message.place, sum(entry.size for entry in due.values()))
        for name, entry in due.items():
            path = f"{message.place.path}/{name}"
            self._folder.upload(path, self._as_in_folder(message, name), sha256=entry.sha256)
        self._folder.create(message.place.manifest, self.path(message.place, MANIFEST).read_bytes())

    def _demand_room(self, place: Place, size: int) -> None:
        """Never begin what cannot be ended; say in time when the folder is getting full."""
        if size <= SMALL_BYTES:
            return
        room = self._folder.room()
        if room is None:
            return
        where = f"{self._me.site}: the folder has room for {size_text(room)}"
        if room < size:
            raise StandingError(f"{where}, {place.path} needs {size_text(size)}: free some, or have the quota raised")
        if room < ROOM_FOR_MESSAGES * size and not self._is_nearly_full:
            logger.warning("%s, enough for %d of the size of the present message", where, room // size)
        self._is_nearly_full = room < ROOM_FOR_MESSAGES * size

    def prune(self, run: str) -> None:
        """Remove the tensor files that the run's rule no longer keeps: ours from the folder, all from the mirror.

        Nothing is removed on the word of an offer or a card that is not well-formed.
        """
        final, rule = Place("final", run), self._configuration(run)
        if self.message(Place("offer", run)) is None or rule is None:
            return
        try:
            card = self.path(final, CARD).read_bytes() if self.message(final) else None
            chosen = open_record(card, FinalCard, f"{final.path}/{CARD}").chosen_round if card else None
        except PoisonError:
            return
        known = [message for message in list(self._sealed.values()) if message.place.run == run]
        settled = {
            message.place.round_no
            for message in known
            if message.place.kind == "verdict" and self._is_in_folder(message)
        }
        for message in known:
            if may_be_removed(
                rule.keep, message.place, settled=settled, chosen=chosen, difference=rule.wire.difference
            ):
                for name in sorted(filter(is_weights, message.manifest.files)):
                    self._remove(message, name)

    def _is_in_folder(self, message: Message) -> bool:
        return message.manifest.sender != self._me.sender or message.manifest.seq <= (self._published or 0)

    def _remove(self, message: Message, name: str) -> None:
        path = self.path(message.place, name)
        if path.exists():
            if message.manifest.sender == self._me.sender:
                self._folder.remove(f"{message.place.path}/{name}")
            path.unlink()
            logger.info("%s: removed %s/%s, as the run's rule says", self._me.site, message.place.path, name)

    def adopt(self, places: Iterable[Place]) -> None:
        """Take back what we sealed and published at ``places`` but no longer have: a lost mirror never forks the chain.

        Raises:
            PoisonError: what lies there is not ours, or not whole.
        """
        found = []
        for place in places:
            manifest = self.notice(place) if self.message(place) is None else None
            if manifest is not None:
                found.append((self._me.open_out_of_order(manifest, place), manifest))
        for message, manifest in sorted(found, key=lambda pair: pair[0].manifest.seq):
            for name in message.manifest.files:
                try:
                    sha256 = self._bring(message, name)
                except NotFoundError:
                    if is_weights(name):  # removed by the run's rule
                        continue
                    raise
                self._check_brought(message, name, sha256)
            write_file(self.path(message.place, MANIFEST), manifest)
            self._sealed[message.place] = message
            logger.warning("%s: took %s back from the folder", self._me.site, message.place.path)

    # --- notice, fetch, verify -----------------------------------------------------------------------------

    def notice(self, place: Place) -> bytes | None:
        """The manifest's bytes if the other side has published a message at ``place``; one small request."""
        try:
            return self._folder.read(place.manifest, max_bytes=MAX_RECORD_BYTES)
        except NotFoundError:
            return None

    def fetch(
        self,
        place: Place,
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
            PoisonError: the sender has signed what no such message may be; it will never be accepted.
            DoubtfulError: manifest or payloads failed twice, which may not be the sender's doing.
            PassingError: they did, but the folder lists the file otherwise.
        """
        if (accepted := self.message(place)) is not None:
            return accepted
        try:
            message = self._peer.open(manifest, place, head=self.peer_head, answers=answers, refused=self._refused)
            if place.kind != "offer":
                self._check_encrypted(message)
        except DoubtfulError:
            if not self._learn_keys() and self._fails_again(place.path):
                self._demand_listed(place.manifest, len(manifest))
                raise
            return None
        room = max_weights_bytes
        for name, entry in sorted(message.manifest.files.items()):
            if without_weights and is_weights(name):
                continue
            path = f"{place.path}/{name}"
            most = room if is_weights(name) else MAX_RECORD_BYTES
            if content_bytes(entry) > most:
                raise PoisonError(path, f"has {content_bytes(entry)} bytes, at most {most} are expected")
            room -= content_bytes(entry) if is_weights(name) else 0
            try:
                self._check_brought(message, name, self._bring(message, name))
            except DoubtfulError:
                if self._fails_again(place.path):
                    raise
                return None
            except NotFoundError:
                if self._fails_again(place.path):
                    self._demand_listed(path, None)
                    raise DoubtfulError(path, "is named by its manifest but is not there") from None
                return None
        if place.kind == "offer":
            self._check_encrypted(message)
        write_file(self.path(place, MANIFEST), manifest)
        self._sealed[place] = message
        logger.info("%s: received %s", self._me.site, place.path)
        return message

    def is_signed(self, place: Place, manifest: bytes) -> bool:
        """Whether the other side has signed a noticed manifest for this place."""
        return self._number_of(place, manifest) is not None

    def skips_messages(self, place: Place, manifest: bytes) -> bool:
        """Whether a noticed manifest is well signed but others of its sender come before it."""
        number = self._number_of(place, manifest)
        return number is not None and number > self.peer_head.seq + 1

    def _number_of(self, place: Place, manifest: bytes) -> int | None:
        """The number of a noticed manifest among its sender's; None of one that is not well signed."""
        try:
            return self._peer.open_out_of_order(manifest, place).manifest.seq
        except PoisonError:
            return None

    def refuse(self, place: Place, error: PoisonError, manifest: bytes) -> None:
        """Put a message that will never be accepted into quarantine, with the reason."""
        if self.message(place) is not None:
            raise ValueError(f"{place.path} was accepted")
        home = self._quarantine / place.path
        home.mkdir(parents=True, exist_ok=True)
        for fetched in (self.mirror / place.path, self._ciphertexts.folder(place)):
            for path in fetched.iterdir() if fetched.is_dir() else ():
                put_in_place(path, home / path.name)
        write_file(home / MANIFEST, manifest)
        write_file(home / "reason.txt", str(error).encode())
        self._refused.add(digest_of(manifest))
        logger.error("%s: refused %s: %s", self._me.site, place.path, error)

    def _fails_again(self, path: str) -> bool:
        """A first failure may be a torn read; a second one is told, whatever came.

        Whoever writes in the folder could else have a message fail otherwise each time, and be waited for for ever.
        """
        failed_before = path in self._failed
        self._failed.add(path)
        return failed_before

    def _demand_listed(self, path: str, size: int | None) -> None:
        """Demand that the folder lists a file with this size, or with None not at all: that nothing on the way lies.

        Raises:
            PassingError: it lists it otherwise.
        """
        folder, _, name = path.rpartition("/")
        try:
            if {entry.name: entry.size for entry in self._folder.list(folder)}.get(name) == size:
                return
        except NotFoundError:
            pass  # though a manifest was read there
        raise PassingError(f"{path} does not come as the folder lists it: something on the way changes it.")

    def open_status(self, content: bytes) -> Status:
        """The heartbeat of the site that is the other side.

        Raises:
            PoisonError: signature or names do not hold.
        """
        try:
            return self._peer.open_status(content)
        except PoisonError:
            if not self._learn_keys():
                raise
            return self._peer.open_status(content)

    # --- a site's later keys -------------------------------------------------------------------------------

    def publish_keys(self) -> None:
        """As the site: put our hand-overs into the folder, and learn those of it that a lost mirror does not have.

        Raises:
            PoisonError: what is there is no hand-over by our key.
            StandingError: our key was handed over to one that we do not have.
        """
        publish(self._folder, self.mirror)
        self._me = learn(followed(self._me, self.mirror), self._folder, self.mirror, accepted=self.own_head)
        self.demand_newest_key()

    def demand_newest_key(self) -> None:
        """Demand that our key is the one that was handed over to last.

        Raises:
            StandingError: it is another.
        """
        if self._public_key != self._me.newest_key:
            raise StandingError(
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
        except PoisonError as error:
            if not self._fails_again(error.file):
                logger.warning("%s: %s; it is not followed", self._me.site, error)
        return self._peer != before

    # --- encryption ----------------------------------------------------------------------------------------

    def demand_keys(self, run: str) -> None:
        """Demand what it takes to encrypt and decrypt a run in this folder.

        Raises:
            ConfigurationError: there is none, because a side has shown no key.
            StandingError: our private key is not the one that we have shown.
        """
        self._ciphertexts.key(run)

    def _check_encrypted(self, message: Message) -> None:
        configuration = self._configuration(message.place.run)
        if configuration is not None:
            check_encrypted(message, configuration.encrypt)
        elif message.place.kind != "offer":  # whose reader refuses it
            raise self._unknown_encryption(message.place.run)

    def _unknown_encryption(self, run: str) -> StandingError:
        return StandingError(
            f"{self.path(Place('offer', run), RUN_CONFIGURATION)} says what is encrypted, and is missing or damaged; "
            "nothing is sent or taken until it is back, from the folder or a backup"
        )

    def _as_in_folder(self, message: Message, name: str) -> Path:
        """Where a payload lies, or is to lie, as it is in the folder."""
        if message.manifest.files[name].encrypted is None:
            return self.path(message.place, name)
        return self._ciphertexts.folder(message.place) / name

    def _bring(self, message: Message, name: str) -> str:
        """Bring a payload here as it is in the folder; return its SHA-256.

        Raises:
            DoubtfulError: it has another size than its manifest says.
            NotFoundError: it is not there.
        """
        path, size = f"{message.place.path}/{name}", message.manifest.files[name].size
        try:
            return self._folder.download(path, self._as_in_folder(message, name), size=size)
        except PoisonError as error:
            raise DoubtfulError(error.file, error.reason) from None

    def _check_brought(self, message: Message, name: str, sha256: str) -> None:
        """Compare a payload with its manifest and, if it is encrypted, put what it says into the mirror.

        Raises:
            DoubtfulError: it is another.
            PoisonError: it does not decrypt.
        """
        entry = message.manifest.files[name]
        check_file(message, name, entry.size, sha256)
        if entry.encrypted is not None:
            self._ciphertexts.decrypt(message, name, self.path(message.place, name))

    def _check_said(self, message: Message, name: str, size: int, sha256: str) -> None:
        """Compare what lies in the mirror with its manifest; of what is encrypted, where there is a key for that.

        Raises:
            PoisonError: it is another.
        """
        if message.manifest.files[name].encrypted is None:
            check_file(message, name, size, sha256)
        else:
            self._ciphertexts.check(message, name, sha256)

    # --- the mirror ----------------------------------------------------------------------------------------

    def _configuration(self, run: str) -> RunConfiguration | None:
        """The run's configuration as it was offered, or is being; None where it is not that, or not well-formed."""
        offer = Place("offer", run)
        if run not in self._configurations:
            try:
                content = self.content(offer, RUN_CONFIGURATION)
                found = open_yaml(content, RunConfiguration, f"{offer.path}/{RUN_CONFIGURATION}")
                if (accepted := self.message(offer)) is None:
                    return found
                check_encrypted(accepted, found.encrypt)
            except (StandingError, PoisonError):
                return None
            self._configurations[run] = found
        return self._configurations[run]

    def _from(self, sender: Correspondent) -> list[Message]:
        known = list(self._sealed.values())  # a copy: at the aggregator, two threads share a channel
        return [message for message in known if message.manifest.sender == sender.sender]

    def _head_of(self, sender: Correspondent) -> Head:
        return max((message.head for message in self._from(sender)), key=lambda head: head.seq, default=Head())

    def _read_mirror(self) -> list[Message]:
        messages = []
        for path in sorted((self.mirror / RUNS).rglob(MANIFEST)):
            place = place_at(path.parent.relative_to(self.mirror).as_posix())
            if place is not None:
                sender = self._peer if place.is_from_site != (self._me.sender != AGGREGATOR) else self._me
                try:
                    messages.append(sender.open_out_of_order(path.read_bytes(), place))
                except PoisonError as error:
                    raise not_as_it_was_left(path, error) from None
        return messages

    def _sizes_in_folder(self, place: Place) -> dict[str, int | None]:
        try:
            return {entry.name: entry.size for entry in self._folder.list(place.path)}
        except NotFoundError:
            return {}

    def _last_in_folder(self, own: list[Message]) -> int:
        """Seq of our newest message whose manifest is in the folder: publishing goes in order, so look back."""
        for message in reversed(own):
            if self.notice(message.place) is not None:
                return message.manifest.seq
        return 0


def _place_file(path: Path, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        write_file(path, content)
    elif content != path:
        link_file(content, path, durable=False)  # the manifest follows
