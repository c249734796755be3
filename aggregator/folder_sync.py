"""A site's folder-sync worker: it enrols the site (protocol 4.1), and is the only one that talks to its folder."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from aggregator.enrolment import enrol, put_back
from aggregator.look import look
from aggregator.site import PUBLISHED, enrolled_in, peer_of
from aggregator.store import withdrawal_of
from shared.doors.json_text import canonical
from shared.errors import (
    ActionRequiredError,
    ConfigurationError,
    DoubtfulError,
    DropfedError,
    NotFoundError,
    RejectedError,
    Stopped,
    TransientError,
)
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encoding import max_weights_bytes
from shared.exchange.encryption import EncryptionKey
from shared.exchange.mirror import Mirror
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.order import ending_of
from shared.exchange.records.messages import Invite
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import SigningKey, digest_of, open_signed
from shared.folder.contract import Entry, Folder
from shared.folder.durable import disk_trouble, write_file
from shared.folder.forbearing import ForbearingFolder
from shared.folder.listed import HAS_TAG, ListedFolder
from shared.folder.retrying import RetryingFolder
from shared.polling import Polling
from shared.trouble import Trouble, UnexpectedError, tolerate_unwritable

logger = logging.getLogger(__name__)

HEARTBEAT_EVERY_S = 5.0  # between two looks for a change of the site's status.json, at least
HEARTBEAT_INTERVALS = 10  # of the longest between two looks for a message: at most


class FolderSync:
    """Moves what is signed for one site into its folder, and what the site has sent from there.

    Args:
        home: ``sites/SITE`` in the work directory.
        invite: None of a site that is enrolled.
        on_news: called from the folder-sync worker whenever something arrived or was sent.
    """

    def __init__(
        self,
        home: Path,
        folder: Folder,
        *,
        invite: Invite | None,
        key: SigningKey,
        encryption_key: EncryptionKey | None,
        stop: threading.Event,
        longest_interval_s: float,
        on_news: Callable[[], None],
    ) -> None:
        self.name = home.name
        self.channel: Channel | None = None
        self.looked = 0
        """The newest of the looks asked for that has come; a look that is cut off has not."""
        self.looked_in_doubt = 0
        """The newest of those that went through the whole folder, and found something in it that does not hold."""
        self.is_in_trouble = False
        """Whether something stands in the way of looking into the folder now."""
        self.cannot_publish = False
        """Whether what is signed cannot be put into the folder until a person has put something right there."""
        self._home = home
        self._unretried = ForbearingFolder(folder)
        retrying = RetryingFolder(self._unretried, name=self.name, stop=stop, on_trouble=self._note_unreachable)
        self._folder = ListedFolder(retrying, has_tag=(home / HAS_TAG).exists())
        self._invite = invite
        self._key = key
        self._encryption_key = encryption_key
        self._stop = stop
        self._longest_interval_s = longest_interval_s
        self._polling = Polling(longest_interval_s)
        self._on_news = on_news
        self._awaited: MessageRef | None = None
        self._looks_for: str | None = None  # the kind of what had not come yet, as far as the last turn could tell
        self._asked_looks = 0
        self._noticed: set[MessageRef] = set()
        self._heard_at = float("-inf")
        self._heard: Entry | None = None  # as it was listed when it was read
        self._false_heartbeats = 0  # one after the other
        self._is_all_here = False  # what we have signed and the folder has
        self._is_newest = False  # this work directory, as far as the site's heartbeat tells
        self._other_history: ActionRequiredError | None = None  # than ours, of which its last heartbeat told
        self._has_shown_keys = False
        self._has_noted = False  # what is published
        self._has_pruned = self._has_pruned_others = False
        self._trouble = Trouble(logger, self.name, "the exchange goes on.")
        self._doubt: ActionRequiredError | None = None  # what lies in the folder, and does not hold
        self._doubts = Trouble(logger, self.name, "all that lies in the folder holds again.")
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"folder-sync-{self.name}", daemon=True)
        self._open_channel()

    def start(self) -> None:
        """Start the folder-sync worker. What stood in the way of the last process need not stand in the way now."""
        self._note_trouble(None)
        self._thread.start()

    def join(self) -> None:
        """Wait for the folder-sync worker to end after the stop event was set."""
        self._wake.set()
        self._thread.join()

    def interrupt(self) -> None:
        """Have a request that the folder-sync worker waits for end at once."""
        self._folder.interrupt()

    def attend(self, awaited: MessageRef | None) -> None:
        """Tell the folder-sync worker what to wait for first of all, and that something may have been signed."""
        if awaited != self._awaited or (self.channel and self.channel.outbox.has_unpublished):
            self._awaited = awaited
            self._wake.set()

    def cannot_have(self, run: RunConfiguration) -> str | None:
        """Return why a run cannot be sent to this site (it is encrypted and keys are missing), or None.

        Raises:
            ActionRequiredError: the private key here is not the one that sites were shown.
        """
        if run.encrypt == "none" or self.channel is None:
            return None
        try:
            self.channel.ledger.require_keys(run.run)
        except ConfigurationError as error:
            return str(error)
        return None

    @property
    def has_unread_withdrawal(self) -> bool:
        """Whether looks have shown a withdrawal that the site has signed, and that could not be taken yet."""
        channel = self.channel
        return channel is not None and not all(map(channel.ledger.is_settled, list(self._noticed)))

    @property
    def has_to_prune(self) -> bool:
        """Whether files may lie in the folder that the run's rule no longer keeps.

        Not of a folder that is in trouble: it may be gone for good, and nobody waits for it.
        """
        return self.channel is not None and not (self._has_pruned or self.is_in_trouble)

    def look_soon(self) -> None:
        """Have the folder-sync worker look into the folder without waiting for its next turn."""
        self._wake.set()

    def request_look(self) -> int:
        """Have the folder-sync worker look, from now on, for anything that the site may have sent, its withdrawal above
        all.

        Returns:
            The look's number: it has come once ``looked`` is no less.
        """
        self._asked_looks += 1
        self.look_soon()
        return self._asked_looks

    # --- the folder-sync worker's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._polling.restart()
        try:
            while not self._stop.is_set():
                if self.work():
                    self._polling.restart()
                    self._on_news()
                elif self._wake.wait(self._polling.interval_s(self._looks_for)):
                    self._polling.restart()
                self._wake.clear()  # whatever it was set for, the next turn sees; so it does whether to stop
        except Stopped:
            pass

    def _still_awaited(self) -> str | None:
        """Return the kind of what is awaited; None once it has come, though the daemon may not have looked yet."""
        awaited, channel = self._awaited, self.channel
        has_come = awaited is not None and channel is not None and channel.ledger.is_settled(awaited)
        return None if awaited is None or has_come else awaited.kind

    def work(self) -> bool:
        """Do what can be done now; return whether anything happened. One site's trouble is told and waited out."""
        try:
            happened = self._step()
            self._looks_for = self._still_awaited()
        except Stopped:
            raise
        except Exception as error:  # the last resort: whatever it is, it is this site's trouble, and no other's
            trouble = self._as_trouble(error)
            self._trouble.begins(trouble)
            self._note_trouble(trouble)
            self._stop.wait(self._trouble.backoff_s(self._longest_interval_s))
            return False
        if self._trouble.ends():
            self._note_trouble(None)
        return happened

    def _as_trouble(self, error: Exception) -> DropfedError:
        if isinstance(error, OSError):
            return disk_trouble(error, self._home)
        if isinstance(error, DoubtfulError):
            return ActionRequiredError(f"{error}: {error.remedy}")
        return error if isinstance(error, DropfedError) else UnexpectedError(error)

    def _step(self) -> bool:
        asked = self._asked_looks  # a look that is asked for from here on has not begun
        self._folder.look_anew(whatever_the_tag_says=asked > self.looked)
        if self.channel is None:
            happened = self._enrol()
            self.looked = asked
            return happened
        if not self._has_shown_keys:
            self._show_keys(self.channel)
        if self.channel.outbox.has_unpublished:
            self._publish(self.channel)
            return True
        if self._other_history is not None:
            self._require_one_history(self.channel, self._read_status())
        if not self._has_noted:
            self._note_published(self.channel)
        if not self._has_pruned:
            self._prune(self.channel)
            self._on_news()
        channel, searches = self.channel, asked > self.looked
        seen = look(
            channel.ledger,
            channel.inbox,
            self._awaited,
            searches=searches,
            noticed=self._noticed,
            may_have_sent_more=lambda: self._may_have_sent_more(channel),
            fetch=lambda ref, manifest: self._fetch(channel, ref, manifest),
        )
        has_looked = searches and seen.is_whole
        if has_looked:
            self.looked = asked  # the daemon waits for it before it signs a round (protocol 6.8)
        if seen.is_full:
            self._note_doubt(seen.doubt)
            if searches and seen.doubt is not None:
                self.looked_in_doubt = asked
        if self._awaited is not None and not seen.happened and channel.outbox.look_back():
            return True
        return seen.happened or has_looked

    def _prune(self, channel: Channel) -> None:
        """Remove what a run's rule keeps no longer (protocol 7.7): of the newest run, and at first of every other."""
        for message in channel.ledger.own_messages()[-1:]:
            channel.outbox.prune(message.ref.run)
            if not self._has_pruned_others:
                channel.outbox.prune_others(message.ref.run, self._unretried)
        self._has_pruned = self._has_pruned_others = True

    def _show_keys(self, channel: Channel) -> None:
        """Put our keys into the folder, before what a later one has signed (protocol 4.3 and 4.4).

        Raises:
            DropfedError: what stands in the way.
        """
        put_back(self._home, self._folder)
        try:
            self._require_newest(channel)
        except ActionRequiredError:
            self.cannot_publish = True
            raise
        channel.outbox.publish_keys()
        self._has_shown_keys = True

    def _publish(self, channel: Channel) -> None:
        """Put into the folder what is signed.

        Raises:
            DropfedError: what stands in the way.
        """
        self._has_noted = self._has_pruned = False
        try:
            if not self._is_all_here:
                channel.outbox.require_all_here()
                self._is_all_here = True
            if not self._is_newest:
                self._require_newest(channel)
            channel.outbox.publish()
        except (Stopped, TransientError):
            raise
        except DropfedError:
            self.cannot_publish = True
            raise
        self.cannot_publish = False
        self._note_published(channel)

    def _read_status(self) -> bytes | None:
        return self._folder.read_or_none(names.STATUS, max_bytes=names.MAX_RECORD_BYTES)

    def _require_newest(self, channel: Channel) -> None:
        """Send nothing from an old copy of the work directory (protocol 4.2): the site would refuse it, and all that
        follows.

        Raises:
            ActionRequiredError: the site has accepted a message of ours that is not here.
        """
        self._hear(channel, self._read_status())
        if self._other_history is not None and not self._is_newest:
            raise self._other_history

    def _require_one_history(self, channel: Channel, heartbeat: bytes | None) -> None:
        """Check that a heartbeat speaks of the messages that are here (protocol 4.2). Else an honest answer, to what is
        not here, would be held against the site.

        Raises:
            ActionRequiredError: as ``_require_newest``; or the site has signed two messages of one number. So it is
                until a heartbeat says otherwise.
        """
        self._hear(channel, heartbeat)
        if self._other_history is not None:
            raise self._other_history

    def _hear(self, channel: Channel, heartbeat: bytes | None) -> None:
        """Note what a heartbeat tells of the messages here; without one that holds, what the last told stands.

        A key that was handed over may be in other hands: it is not believed.
        """
        if heartbeat is None:
            return
        try:
            status = channel.inbox.open_status(heartbeat)
        except RejectedError:
            return
        if open_signed(heartbeat)[1] != channel.ledger.peer.newest_key:
            return
        ours, theirs, self._other_history = status.aggregator_head, status.own_head, None
        self._is_newest = not channel.ledger.is_from_another_copy(ours)
        if not self._is_newest:
            self._other_history = ActionRequiredError(
                f"{self.name} says that it has our message number {ours.seq}, which is not in {self._home}; if this "
                "work directory is an old copy, put back the newest, and launch from that; if it is not, ask that "
                "hospital's people; nothing is sent to it meanwhile"
            )
        elif channel.ledger.has_another(channel.ledger.peer, theirs):
            self._other_history = ActionRequiredError(
                f"{self.name} says that its message number {theirs.seq} is another than the one that it sent before: "
                "it goes on from an old copy of its work directory, or two copies are at work; ask that hospital's "
                "people to end all but the newest; nothing is taken from it meanwhile"
            )

    def _note_published(self, channel: Channel) -> None:
        """Keep how far the folder has what we signed where ``status`` finds it."""
        write_file(self._home / PUBLISHED, canonical(channel.outbox.published_head.model_dump()))
        self._has_noted = True

    def _fetch(self, channel: Channel, ref: MessageRef, manifest: bytes) -> bool:
        # A site's message answers the one that its kind names (protocol 3.2); its tensor files have a bound
        # (protocol 10.1, step 13).
        answered = channel.ledger.message(ref.answers) if ref.answers else None
        try:
            message = channel.inbox.fetch(
                ref,
                manifest,
                answers=(answered.digest,) if answered else (),
                max_weights_bytes=_max_weights_bytes(channel.ledger, ref),
            )
        except DoubtfulError:
            raise
        except RejectedError as error:
            # What its key has signed, and may not be, is refused for good (protocol 10.2).
            self._require_one_history(channel, self._read_status())
            channel.ledger.refuse(ref, error, manifest)
        else:
            if message is None:
                return False
        if ref.kind == "withdrawal":
            late = " when that was over" if ending_of(channel.ledger, ref.run) != "withdrawn" else ""
            why = withdrawal_of(channel.ledger, ref.run)
            logger.warning("%s withdraws from run %s%s: %s", self.name, ref.run, late, why)
        return True

    # --- the site's heartbeat ------------------------------------------------------------------------------

    def _may_have_sent_more(self, channel: Channel) -> bool:
        """Return whether it is time to look for anything that is not awaited (protocol 4.2).

        The heartbeat says how much the site had sent. Without one that holds, or while it stands still (a site that is
        switched off right after it sent something does not say so any more), looking is the only way to know.
        """
        now, longest_s = time.monotonic(), HEARTBEAT_INTERVALS * self._longest_interval_s
        if now - self._heard_at < max(HEARTBEAT_EVERY_S, min(self._polling.waited_s, longest_s)):
            return False
        self._heard_at = now
        heard = self._folder.find(names.STATUS)
        if heard is not None and _shows_no_change(self._heard, heard):
            return True
        try:
            content = self._folder.read(names.STATUS, max_bytes=names.MAX_RECORD_BYTES)
            self._heard = heard
            status = channel.inbox.open_status(content)
        except NotFoundError:
            return True
        except RejectedError as error:
            self._false_heartbeats += 1
            if self._false_heartbeats == 2:  # the first may have been read while it was being written
                logger.warning("%s: %s; it is not believed, and the work goes on without it", self.name, error)
            return True
        if self._false_heartbeats >= 2:
            logger.info("%s: the heartbeat holds again", self.name)
        self._false_heartbeats = 0
        self._require_one_history(channel, content)
        path = self._home / names.STATUS
        if path.exists() and path.read_bytes() == content:
            return True
        write_file(path, content)
        return status.own_head.seq > channel.ledger.peer_head.seq

    # --- enrolment -----------------------------------------------------------------------------------------

    def _enrol(self) -> bool:
        if self._invite is None or not enrol(self._home, self._folder, self._invite, self._key, self._encryption_key):
            return False
        logger.info("%s is enrolled", self.name)
        self._open_channel()
        return True

    @property
    def card_digest(self) -> str:
        """SHA-256 of the site's card, which an offer answers (protocol 3.2)."""
        return digest_of((self._home / names.MIRROR / names.SITE_CARD).read_bytes())

    def _open_channel(self) -> None:
        """Begin the exchange; nothing yet with a site that is not enrolled."""
        if (federation := enrolled_in(self._home)) is not None:
            channel = Channel(
                self._home,
                self._folder,
                me=AGGREGATOR,
                key=self._key,
                peer=peer_of(federation),
                encryption_key=self._encryption_key,
            )
            channel.ledger.require_newest_key()
            self.channel = channel

    def _note_doubt(self, doubt: DoubtfulError | None) -> None:
        """Report what a full look has found to be invalid, until a look finds nothing: no other work waits for it."""
        if doubt is None:
            self._doubt = None
            self._doubts.ends()
        else:
            self._doubt = ActionRequiredError(f"{doubt}: {doubt.remedy}")
            self._doubts.begins(self._doubt)
        self._note_trouble(None)

    def _note_unreachable(self, error: DropfedError | None) -> None:
        """Note what stands in the way of reaching the folder, which is tried again until it does no more."""
        self.cannot_publish = isinstance(error, ActionRequiredError)
        self._note_trouble(error)

    def _note_trouble(self, error: DropfedError | None) -> None:
        """Note the present trouble, and keep what is to be told where ``status`` finds it. It is the last resort, and
        never raises.
        """
        self.is_in_trouble = error is not None
        told, path = error or self._doubt, self._home / "trouble.txt"
        with tolerate_unwritable(path):
            if told is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_bytes() != str(told).encode():
                write_file(path, str(told).encode())


def _shows_no_change(before: Entry | None, now: Entry) -> bool:
    return before is not None and now.mark is not None and (before.size, before.mark) == (now.size, now.mark)


def _max_weights_bytes(ledger: Mirror, ref: MessageRef) -> int:
    """Return the most bytes of tensor files that a site's message at ``ref`` may bring."""
    if ref.kind != "update":
        return 0
    offer = MessageRef("offer", ref.run)
    return max_weights_bytes(ledger.record(offer, Sharing), "update", ledger.record(offer, RunConfiguration).wire)
