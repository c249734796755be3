"""Our way into a folder: what we sign goes into the mirror first, and from there into the folder, in order."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from shared.errors import ActionRequiredError, AlreadyExistsError, DropfedError, RejectedError, Stopped
from shared.exchange.encryption import Ciphertext
from shared.exchange.handovers import enrolled, followed, learn, publish
from shared.exchange.last_heartbeat import ANOTHER_COPY, another_copy, last_told
from shared.exchange.mirror import Mirror
from shared.exchange.names import (
    AGGREGATOR,
    KINDS,
    MANIFEST,
    MAX_RECORD_BYTES,
    RUNS,
    MessageRef,
    is_weights,
    may_hold,
)
from shared.exchange.order import ending_of
from shared.exchange.places import rounds_in, runs_in
from shared.exchange.records.messages import Head, Manifest
from shared.exchange.records.values import now_text
from shared.exchange.records.wire import PLAIN, FileEntry, Wire, encrypts
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of
from shared.folder.contract import SMALL_BYTES, Folder
from shared.folder.durable import link_file, write_file
from shared.sizes import size_text

logger = logging.getLogger(__name__)

ROOM_FOR_MESSAGES = 4  # people are warned when the folder has room for fewer of the present size
LOOKS_BACK_EVERY_S = 600.0
MOST_UNKNOWN = 1000  # places in a folder at which a newer copy of our work directory may have left a message
ROOM_UNASKED = 64  # while there is room for more of them, the server is not asked again


class Outbox:
    """Signs, publishes and prunes.

    Args:
        key: ours.
    """

    def __init__(self, mirror: Mirror, folder: Folder, key: SigningKey) -> None:
        self._mirror = mirror
        self._folder = folder
        self._key = key
        self._published: int | None = None  # seq of our last message known to be in the folder
        self._looks_back_at = time.monotonic() + LOOKS_BACK_EVERY_S
        self._is_nearly_full = False
        self._known_room = 0.0  # bytes, less what was sent since

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

        Payloads that the run wants encrypted are encrypted.

        Args:
            files: content by name; a ``Path`` on the same disk is linked, not copied.
            known: size and hash by name, of files that need not be hashed again.
            encrypted: by name, what need not be encrypted again, if it is to be encrypted at all.
            wire: the form that the run wants its rounds' weights in, and in which they are given here.

        Raises:
            ConfigurationError, ActionRequiredError: it is to be encrypted, and we have not the keys (``require_keys``);
                or nobody can tell, for the run's offer is not in the mirror, well-formed, as it was accepted.
        """
        # 1. What is signed once is never signed otherwise (protocol 2.1): after a crash the very same bytes go out.
        if (signed := self._mirror.message(ref)) is not None:
            return signed
        # 2. The payloads first, exactly those of this kind (protocol 6.3): a message without a manifest is work in
        #    progress, and may be written again.
        required = KINDS[ref.kind].files
        if not required <= set(files) or not all(may_hold(ref.kind, name) for name in files):
            raise ValueError(f"{sorted(files)} is not what belongs into {ref.path}")
        for name, content in files.items():
            _place_file(self._mirror.path(ref, name), content)
        # 3. Each is encrypted where the run's offer says so (protocol 9.3), and named by size and hash as it will lie
        #    in the folder. An offer that is being signed says it itself; of one that cannot be read nothing is.
        configuration = self._mirror.require_configuration(ref.run)
        entries: dict[str, FileEntry] = {}
        for name in sorted(files):
            path = self._mirror.path(ref, name)
            if encrypts(configuration.encrypt, name):
                entries[name] = self._mirror.ciphertexts.encrypt(ref, name, path, encrypted.get(name))
            else:
                entries[name] = known.get(name) or entry_of(path)
        # 4. The manifest continues our chain by exactly one, and says what it answers (protocol 3.2).
        manifest = Manifest(
            kind=ref.kind,
            federation=self._mirror.own.federation,
            site=self._mirror.own.site,
            sender=self._mirror.own.sender,
            run=ref.run,
            round=ref.round_no,
            seq=self._mirror.own_head.seq + 1,
            previous=self._mirror.own_head.digest,
            in_reply_to=in_reply_to,
            created=now_text(),
            files={name: entry.model_copy(update={"wire": wire.of(ref.kind, name)}) for name, entry in entries.items()},
        )
        # 5. It is signed (protocol 3.1) and written last (protocol 2.1).
        content = self._key.sign(manifest.model_dump())
        self._mirror.add(message := Message(ref, manifest, digest_of(content)), content)
        return message

    @property
    def has_unpublished(self) -> bool:
        """Whether a signed message is not known to be in the folder yet."""
        return self._published is None or self._published < self._mirror.own_head.seq

    @property
    def published_head(self) -> Head:
        """Our last message known to be in the folder."""
        known = [message for message in self._mirror.own_messages() if message.manifest.seq <= (self._published or 0)]
        return known[-1].head if known else Head()

    def publish(self) -> None:
        """Bring every signed message into the folder, in order, payloads first and the manifest last.

        Raises:
            ActionRequiredError: there is no room for the next message, or another copy of this work directory is at
                work; nothing of it was sent.
            AlreadyExistsError: somebody else's lies in its place; nothing of it was sent.
        """
        own = self._mirror.own_messages()
        is_first = self._published is None
        if self._published is None:
            last = self._last_in_folder(own)
            self._send_lost(own, last)
            self._published = last
        for message in own:
            if message.manifest.seq > self._published:
                self._require_only_copy()
                self._send(message)
                self._published = message.manifest.seq
                logger.info("%s: published %s", self._mirror.own.site, message.ref.path)
            elif not is_first:
                continue
            self._mirror.ciphertexts.forget(message.ref)

    def require_all_here(self) -> None:
        """Check, as the aggregator, that the folder has no message of ours that is not here (protocol 4.2).

        Raises:
            ActionRequiredError: it has, so this work directory is an old copy, or another is at work; or somebody has
                made more places than can be looked at.
        """
        looked = 0
        for run in runs_in(self._folder):
            for ref in self._unknown_places(run):
                if (looked := looked + 1) > MOST_UNKNOWN:
                    raise ActionRequiredError(
                        f"{self._mirror.own.site}: {RUNS} in the folder has more than {MOST_UNKNOWN} places of "
                        "messages that were not signed here: see who else writes there, and remove what is not the "
                        "federation's"
                    )
                self._require_not_ours(ref)

    def _unknown_places(self, run: str) -> list[MessageRef]:
        """Return where the aggregator's messages of a run may lie that are not here; none of a run that has ended."""
        message = self._mirror.message
        if message(offer := MessageRef("offer", run)) is None:
            return [offer]  # which any run has that we have ever offered
        ends: list[MessageRef] = [MessageRef("final", run), MessageRef("abort", run)]
        if any(map(message, ends)):
            return []
        if self._is_over(run):
            ends = []  # a site that declined or left is told of no end (protocol 6.1)
        of_rounds = [
            [MessageRef("round", run, number), MessageRef("verdict", run, number)]
            for number in rounds_in(self._folder, run)
        ]
        return [ref for ref in (*ends, *chain.from_iterable(of_rounds)) if message(ref) is None]

    def look_back(self) -> bool:
        """Look now and then, while an answer is awaited, whether what the other side may lack is still in the folder: a
        folder that was put back from a backup has lost it. It is to be published again then, with what else is lost.

        Returns:
            Whether it was lost.
        """
        now, own = time.monotonic(), self._mirror.own_messages()
        if self.has_unpublished or not own or now < self._looks_back_at:
            return False
        self._looks_back_at = now + LOOKS_BACK_EVERY_S
        read = self._read_by_peer(own)
        lost = [message for message in own if message.manifest.seq > read and not self._is_there(message)]
        for message in lost:
            logger.warning("%s: %s is not whole in the folder any more", self._mirror.own.site, message.ref.path)
        if lost:
            self._published = None
        return bool(lost)

    def _read_by_peer(self, own: Sequence[Message]) -> int:
        """Return the seq of our last message that the other side has answered, and so read, with all before it."""
        answered = {message.manifest.in_reply_to for message in self._mirror.peer_messages()}
        return max((message.manifest.seq for message in own if message.digest in answered), default=0)

    def _send_lost(self, own: Sequence[Message], last: int) -> None:
        """Send again what the folder has lost, up to our ``last`` message that it has.

        Of open runs, and of the newest, each message is looked for; of an earlier run that is over its last, without
        which others may be missing. What is neither there nor here cannot be sent.
        """
        read, of_run = self._read_by_peer(own), dict[str, list[Message]]()
        for message in own:
            if message.manifest.seq <= last:
                of_run.setdefault(message.ref.run, []).append(message)
        for run, messages in of_run.items():
            # Once a run is over, nobody needs the tensor files that were read: people may have deleted them.
            until = read if self._is_over(run) else 0
            if until and run != own[-1].ref.run and self._is_there(messages[-1], needs_weights=False):
                continue
            for message in messages:
                if not self._is_there(message, needs_weights=message.manifest.seq > until):
                    self._send_again(message)

    def _send_again(self, message: Message) -> None:
        try:
            self._send(message)
        except (ActionRequiredError, AlreadyExistsError) as error:  # what follows it is there
            # A lost disk does not know yet which models the run's rule has removed.
            level = logging.INFO if MANIFEST in self._sizes_in_folder(message.ref) else logging.ERROR
            logger.log(level, "%s: %s", self._mirror.own.site, error)
        else:
            logger.warning("%s: published %s again, which was lost", self._mirror.own.site, message.ref.path)

    def _is_there(self, message: Message, *, needs_weights: bool = True) -> bool:
        """Return whether the folder lists a message whole, but for tensor files that the run's rule has removed.

        Args:
            needs_weights: whether those that it keeps must be there.
        """
        there = self._sizes_in_folder(message.ref)
        return MANIFEST in there and all(
            there.get(name, -1) in (entry.size, None)  # not every server lists sizes
            or (is_weights(name) and (not needs_weights or self._is_pruned(message, name)))
            for name, entry in message.manifest.files.items()
        )

    def _is_over(self, run: str) -> bool:
        with suppress(ActionRequiredError):
            return ending_of(self._mirror, run) is not None
        return False  # what was said of it is not here as it was: then it may go on

    def _send(self, message: Message) -> None:
        """Send a message, but not the tensor files that are there whole.

        Raises:
            ActionRequiredError: there is no room for it; the folder has lost it, and it is not here any more in the
                form that was signed; or another copy of this work directory has sent another.
            AlreadyExistsError: somebody else's lies in its place.
        """
        # 1. Where another message lies, nothing is sent: it would change what that one's manifest names.
        there = self._sizes_in_folder(message.ref)
        if is_named := MANIFEST in there:
            self._create_manifest(message)
        # 2. A tensor file that no manifest names may be another's, as of a message that a lost disk had signed.
        whole = there if is_named else {}
        # 3. Payloads first, and the manifest last (protocol 2.1).
        due = {
            name: entry
            for name, entry in sorted(message.manifest.files.items())
            if not is_weights(name) or (whole.get(name) != entry.size and not self._is_pruned(message, name))
        }
        for name in due:
            if not self._mirror.as_in_folder(message, name).exists():
                raise ActionRequiredError(
                    f"{message.ref.path}/{name} was lost from the folder, and is not kept here in the form that was "
                    "signed: put the newest backup of the folder back, or stop the run"
                )
        self._require_room(message.ref, sum(entry.size for entry in due.values()))
        for name, entry in due.items():
            path = f"{message.ref.path}/{name}"
            self._folder.upload(path, self._mirror.as_in_folder(message, name), sha256=entry.sha256)
        self._create_manifest(message)

    def _create_manifest(self, message: Message) -> None:
        """Put a message's manifest into the folder; where it lies already, nothing happens.

        Raises:
            ActionRequiredError: another lies there, signed with our key.
            AlreadyExistsError: another lies there.
        """
        try:
            self._folder.create(message.ref.manifest, self._mirror.path(message.ref, MANIFEST).read_bytes())
        except AlreadyExistsError:
            self._require_not_ours(message.ref)
            raise

    def _require_only_copy(self) -> None:
        """Check, as a site, that our heartbeat in the folder tells of no message that is not from here.

        Raises:
            ActionRequiredError: it does.
        """
        mirror = self._mirror
        if mirror.own.sender != AGGREGATOR and mirror.is_from_another_copy(told := last_told(self._folder, mirror.own)):
            raise another_copy(told, "in the folder")

    def _require_not_ours(self, ref: MessageRef) -> None:
        """Check that what lies in our message's place, and is another, is not signed by our key.

        Raises:
            ActionRequiredError: it is.
        """
        with suppress(RejectedError):
            content = self._folder.read_or_none(ref.manifest, max_bytes=MAX_RECORD_BYTES)
            if content is not None and self._mirror.own.open_out_of_order(content, ref):
                raise ActionRequiredError(
                    f"{ref.manifest} is in the folder already, signed with our key, and is {ANOTHER_COPY}"
                )

    def _is_pruned(self, message: Message, name: str) -> bool:
        """Return whether a tensor file was removed here by the run's rule."""
        if self._mirror.path(message.ref, name).exists():
            return False
        known = list(self._mirror.messages.values())
        settled = {each.ref.round_no for each in known if (each.ref.run, each.ref.kind) == (message.ref.run, "verdict")}
        with suppress(ActionRequiredError):  # the final card is not as it was left: whoever reads it says so
            return self._mirror.may_be_pruned(message.ref, settled=settled)
        return False

    def _require_room(self, ref: MessageRef, size: int) -> None:
        """Check that the folder has room for a message before it is sent; warn in time when the folder gets full."""
        if size <= SMALL_BYTES:
            return
        self._known_room -= size
        if self._known_room > ROOM_UNASKED * size:
            return
        room = self._folder.room()
        self._known_room = math.inf if room is None else room - size
        if room is None:
            return
        where = f"{self._mirror.own.site}: the folder has room for {size_text(room)}"
        if room < size:
            raise ActionRequiredError(
                f"{where}, {ref.path} needs {size_text(size)}: free some, or have the quota raised"
            )
        if room < ROOM_FOR_MESSAGES * size and not self._is_nearly_full:
            logger.warning("%s, enough for %d of the size of the present message", where, room // size)
        self._is_nearly_full = room < ROOM_FOR_MESSAGES * size

    def prune(self, run: str) -> None:
        """Remove the tensor files that the run's rule no longer keeps: ours from the folder, all from the mirror."""
        self._prune(
            [message for message in list(self._mirror.messages.values()) if message.ref.run == run], self._folder
        )

    def prune_others(self, run: str, folder: Folder) -> None:
        """Do the same for every other run: its end may have come into the folder when nobody was there to prune it.

        Args:
            folder: which raises what stands in the way at once; nobody waits for what cannot be removed there.
        """
        of_run: dict[str, list[Message]] = {}
        for message in list(self._mirror.messages.values()):
            of_run.setdefault(message.ref.run, []).append(message)
        for other, known in of_run.items():
            if other != run:
                try:
                    self._prune(known, folder)
                except Stopped:
                    raise
                except DropfedError as error:
                    logger.info("%s: run %s: what its rule removes stays: %s", self._mirror.own.site, other, error)

    def _prune(self, known: Sequence[Message], folder: Folder) -> None:
        mirror = self._mirror
        settled = {
            message.ref.round_no for message in known if message.ref.kind == "verdict" and self._is_in_folder(message)
        }
        try:
            due = [message for message in known if mirror.may_be_pruned(message.ref, settled=settled)]
        except ActionRequiredError:  # the final card is not as it was left: whoever reads it says so
            return
        for message in due:
            for name in sorted(filter(is_weights, message.manifest.files)):
                self._remove(message, name, folder)

    def _is_in_folder(self, message: Message) -> bool:
        return message.manifest.sender != self._mirror.own.sender or message.manifest.seq <= (self._published or 0)

    def _remove(self, message: Message, name: str, folder: Folder) -> None:
        path = self._mirror.path(message.ref, name)
        if path.exists():
            if message.manifest.sender == self._mirror.own.sender:
                folder.remove(f"{message.ref.path}/{name}")
            path.unlink()
            logger.info("%s: removed %s/%s, as the run's rule says", self._mirror.own.site, message.ref.path, name)

    # --- our later keys ------------------------------------------------------------------------------------

    def publish_keys(self) -> None:
        """Put our hand-overs into the folder, and learn those of it that a lost mirror does not have.

        Raises:
            RejectedError: what is there is no hand-over by our key.
            ActionRequiredError: our key was handed over to one that we do not have; or, in an old copy of this work
                directory, without a message that it has signed.
        """
        mirror = self._mirror
        mirror.own = own = followed(enrolled(mirror.own, mirror.root), mirror.root)
        for count, handover in enumerate(own.handovers):
            told = last_told(self._folder, replace(own, handovers=own.handovers[:count]))
            if told.seq > handover.after.seq:
                raise another_copy(told, "in the folder")
        publish(mirror.own, self._folder, mirror.root)
        mirror.own = learn(mirror.own, self._folder, mirror.root, accepted=mirror.own_head)
        mirror.require_newest_key()

    def _sizes_in_folder(self, ref: MessageRef) -> dict[str, int | None]:
        return {entry.name: entry.size for entry in self._folder.entries_now(ref.path)}

    def _last_in_folder(self, own: list[Message]) -> int:
        """Return the seq of our newest message whose manifest is in the folder, looking back from the newest."""
        for message in reversed(own):
            signed = self._mirror.path(message.ref, MANIFEST).read_bytes()
            with suppress(RejectedError):  # what lies there is not what we signed
                if self._folder.read_or_none(message.ref.manifest, max_bytes=MAX_RECORD_BYTES) == signed:
                    return message.manifest.seq
        return 0


def _place_file(path: Path, content: bytes | Path) -> None:
    """Put a payload where it belongs; it is on the disk before its manifest is."""
    if isinstance(content, bytes):
        write_file(path, content, durable=False)
    elif content != path:
        link_file(content, path, durable=False)
