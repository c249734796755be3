"""The other side's way to us: a message is noticed, fetched and verified, and only then lies in the mirror."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from shared.errors import ActionRequiredError, DoubtfulError, NotFoundError, RejectedError, TransientError
from shared.escaping import quoted
from shared.exchange.handovers import followed, learn, named_key
from shared.exchange.last_heartbeat import ANOTHER_COPY
from shared.exchange.mirror import Mirror
from shared.exchange.names import AGGREGATOR, MAX_RECORD_BYTES, RUN_CONFIGURATION, MessageRef, is_weights
from shared.exchange.records.messages import Status
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.surveys import Survey
from shared.exchange.records.wire import Encrypt
from shared.exchange.trust import Message, Peer, check_encrypted, check_file, check_sizes
from shared.folder.contract import Folder
from shared.folder.partial import Partial

RecordT = TypeVar("RecordT")
TOO_LARGE = b"too large"
"""What is noticed where a file is larger than any manifest."""

logger = logging.getLogger(__name__)


class Inbox:
    """Notices, fetches and verifies; whoever has a message refused puts it into quarantine (``Mirror.refuse``)."""

    def __init__(self, mirror: Mirror, folder: Folder) -> None:
        self._mirror = mirror
        self._folder = folder
        self._failed: set[str] = set()  # paths, of messages and of hand-overs, at which something failed before

    def notice(self, ref: MessageRef) -> bytes | None:
        """Return the manifest's bytes if the other side has published a message at ``ref``; one small request."""
        try:
            return self._folder.read_or_none(ref.manifest, max_bytes=MAX_RECORD_BYTES)
        except RejectedError:  # it is larger than any manifest
            return TOO_LARGE

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
            ActionRequiredError: as ``_require_named_key``.
        """
        mirror = self._mirror
        if (accepted := mirror.message(ref)) is not None:
            return accepted
        self._require_named_key()
        # 1. The manifest passes the only door before a byte of a payload is asked for (protocol 10.1, steps 1 to 12).
        try:
            message = self._open(ref, manifest, answers)
        except DoubtfulError:
            # Its key may have been handed over to meanwhile (protocol 4.3 and 4.4): the next look knows that key.
            if self.learn_keys():
                return None
            # What is wrong once may be a torn read; what is wrong twice is reported (protocol 10.2).
            if self._fails_again(ref.path):
                self._require_read_whole(ref, manifest)
                raise
            return None
        # 2. By the signed manifest a payload is no larger than it can be (protocol 10.1, step 13); one that nobody here
        #    needs is left where it lies.
        check_sizes(message, max_weights_bytes, without_weights=without_weights)
        for name in sorted(message.manifest.files):
            if without_weights and is_weights(name):
                Partial(mirror.as_in_folder(message, name)).discard()
                continue
            path = f"{ref.path}/{name}"
            # 3. The payload comes here as it is in the folder; then its hash is compared and its blocks are decrypted
            #    (protocol 10.1, steps 14 and 15). Until its manifest is here it counts for nothing.
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
        # 4. An offer says itself what of it is encrypted, so step 12 waited for its payloads. If its configuration
        #    cannot be read, whoever reads it refuses it.
        if ref.kind == "offer" and (run := mirror.configuration(ref.run)) is not None:
            check_encrypted(message, run.encrypt)
        # 5. The manifest is written last, here as in the folder (protocol 2.1): from here on the message is accepted,
        #    whatever crashes. A round's models take the disk a while; what follows from them waits for it
        #    (``Mirror.flush``), but not the work on them.
        (mirror.accept if message.ref.kind in ("round", "update") else mirror.add)(message, manifest)
        logger.info("%s: received %s", mirror.own.site, ref.path)
        return message

    def _open(self, ref: MessageRef, manifest: bytes, answers: Collection[str | None]) -> Message:
        """Return a noticed message as its manifest tells it, if that passes.

        Raises:
            RejectedError, DoubtfulError: as for ``fetch``.
        """
        if manifest == TOO_LARGE:
            raise DoubtfulError(ref.manifest, f"has more than {MAX_RECORD_BYTES} bytes")
        mirror = self._mirror
        message = mirror.peer.open(manifest, ref, head=mirror.peer_head, answers=answers, refused=mirror.refused)
        if ref.kind != "offer":
            check_encrypted(message, self._encrypt(ref))
        return message

    def _encrypt(self, ref: MessageRef) -> Encrypt:
        """Return what of a message its run has encrypted.

        Raises:
            ActionRequiredError: that was accepted, and is not here any more as it was.
        """
        mirror, offer = self._mirror, MessageRef("offer", ref.run)
        # An abort also ends an offer that cannot be read (protocol 10.1). Its manifest says whether it was encrypted.
        if ref.kind == "abort" and (offered := mirror.message(offer)) is not None:
            try:
                mirror.record(offer, RunConfiguration)
            except RejectedError:
                return "all" if offered.manifest.files[RUN_CONFIGURATION].encrypted else "none"
        return mirror.require_configuration(ref.run).encrypt

    def is_signed(self, ref: MessageRef, manifest: bytes) -> bool:
        """Return whether the other side has signed a noticed manifest for this place."""
        return self._number_of(ref, manifest) is not None

    def skips_messages(self, ref: MessageRef, manifest: bytes) -> bool:
        """Return whether a noticed manifest is well signed but others of its sender come before it."""
        number = self._number_of(ref, manifest)
        return number is not None and number > self._mirror.peer_head.seq + 1

    def _number_of(self, ref: MessageRef, manifest: bytes) -> int | None:
        """Return the number of a noticed manifest among its sender's; None of one that is not well signed."""
        if self._awaited_key() is not None:
            return None
        try:
            return self._mirror.peer.open_out_of_order(manifest, ref, head=self._mirror.peer_head).manifest.seq
        except RejectedError:
            return None

    def open_status(self, content: bytes) -> Status:
        """Return the heartbeat of the site that is the other side.

        Raises:
            RejectedError: signature or names do not hold.
        """
        return self._opened(lambda peer: peer.open_status(content, head=self._mirror.peer_head))

    def open_survey(self, content: bytes, number: int) -> Survey:
        """Return a survey of the aggregator that is the other side, and that was not seen before.

        Raises:
            RejectedError: signature, names or number do not hold, or it is not well-formed.
            ActionRequiredError: as ``_require_named_key``.
        """
        self._require_named_key()
        return self._opened(lambda peer: peer.open_survey(content, number, is_new=True))

    def _opened(self, read: Callable[[Peer], RecordT]) -> RecordT:
        """Return what the other side signed, under the keys that are known here or else those that the folder shows."""
        try:
            return read(self._mirror.peer)
        except RejectedError:
            if not self.learn_keys():
                raise
            return read(self._mirror.peer)

    def _require_named_key(self) -> None:
        """As a site: have the aggregator's hand-over to the key that a person here has named come first.

        Else who has stolen the key before could go on with it until the aggregator's next message (protocol 4.4).

        Raises:
            ActionRequiredError: the folder shows no such hand-over.
        """
        if (key := self._awaited_key()) is not None and not self.learn_keys():
            raise ActionRequiredError(
                f"the key {key} was named here: nothing of the aggregator is taken before the folder shows the "
                "hand-over to it; if another is the aggregator's, "
                f"`dropfed-site accept-key KEY --work {quoted(self._mirror.root.parent)}` with that one"
            )

    def _awaited_key(self) -> str | None:
        """Return the aggregator's key that a person at this site has named, if it has not been handed over to yet."""
        peer = self._mirror.peer
        named = named_key(self._mirror.root) if peer.sender == AGGREGATOR else None
        return None if named in peer.keys else named

    def learn_keys(self) -> bool:
        """Look for further keys of the other side; return whether there is one.

        Raises:
            ActionRequiredError: as a site: the aggregator has one that nobody here has named yet.
        """
        before = self._mirror.peer
        try:
            self._mirror.peer = learn(
                before,
                self._folder,
                self._mirror.root,
                accepted=self._mirror.peer_head,
                only_named=before.sender == AGGREGATOR,
            )
        except ActionRequiredError:
            self._mirror.peer = followed(before, self._mirror.root)  # as far as a person has named the keys
            raise
        except RejectedError as error:
            if not self._fails_again(error.file):
                logger.warning("%s: %s; it is not followed", self._mirror.own.site, error)
        return self._mirror.peer != before

    def adopt(self, refs: Iterable[MessageRef]) -> None:
        """Take back what we signed and published at ``refs`` but no longer have: a lost mirror never forks the chain.

        Raises:
            RejectedError: what lies there is not ours, or not whole.
            DoubtfulError: one has the number of another here, by a key that was handed over.
            ActionRequiredError: one has the number of another here.
        """
        found = []
        for ref in refs:
            manifest = self.notice(ref) if self._mirror.message(ref) is None else None
            if manifest is not None:
                found.append((self._mirror.own.open_out_of_order(manifest, ref), manifest))
        numbers = {message.manifest.seq for message in self._mirror.own_messages()}
        for message, manifest in sorted(found, key=lambda pair: pair[0].manifest.seq):
            if message.manifest.seq in numbers:
                self._mirror.own.open_out_of_order(manifest, message.ref, head=self._mirror.own_head)
                raise ActionRequiredError(
                    f"{message.ref.manifest} is in the folder, signed with our key as message {message.manifest.seq}, "
                    f"and is {ANOTHER_COPY}"
                )
            for name in message.manifest.files:
                try:
                    sha256 = self._bring(message, name)
                except NotFoundError:
                    if is_weights(name):  # removed by the run's rule
                        continue
                    raise
                self._check_brought(message, name, sha256)
            self._mirror.add(message, manifest)
            numbers.add(message.manifest.seq)
            logger.warning("%s: took %s back from the folder", self._mirror.own.site, message.ref.path)

    def _fails_again(self, path: str) -> bool:
        """Return whether reading failed here before. A first failure may be a torn read; a second one is told.

        Otherwise somebody who can write in the folder could make a message fail differently each time, and it would be
        waited for for ever.
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

    def _require_read_whole(self, ref: MessageRef, manifest: bytes) -> None:
        """Check that a noticed manifest has the size that the folder lists; what is too large was never read whole.

        Raises:
            TransientError: as ``_require_listed``.
        """
        if manifest != TOO_LARGE:
            self._require_listed(ref.manifest, len(manifest))

    def _bring(self, message: Message, name: str) -> str:
        """Bring a payload here as it is in the folder; return its SHA-256.

        Raises:
            DoubtfulError: it has another size than its manifest says.
            NotFoundError: it is not there.
        """
        path, size = f"{message.ref.path}/{name}", message.manifest.files[name].size
        try:
            return self._folder.download(path, self._mirror.as_in_folder(message, name), size=size)
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
            self._mirror.ciphertexts.decrypt(message, name, self._mirror.path(message.ref, name))
