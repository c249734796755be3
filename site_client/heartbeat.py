"""The site's heartbeat: ``status.json`` in the folder and in the work directory.

It says where the site stands and the last message it knows of either side, so that an auditor notices when the
newest message of a folder was removed. It never holds up the work: one that cannot be sent is dropped. Nor is one sent
before our own card is seen in the folder: of two work directories that were joined by one invite, the second says
nothing there.

What stands in the way is told in full in the work directory only: it may name images or paths, and those never leave.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from shared import service
from shared.doors import Refusal
from shared.doors.schema import fill
from shared.errors import ActionRequiredError, DropfedError, LeftAloneError, RejectedError, TransientError
from shared.exchange.channel import Channel
from shared.exchange.last_heartbeat import another_copy, last_told
from shared.exchange.names import MAX_RECORD_BYTES, MIRROR, SITE_CARD, STATUS, MessageRef
from shared.exchange.records.messages import Head, Phase, Status, status_text
from shared.exchange.records.values import now_text, sentence
from shared.exchange.signing import SigningKey, open_signed
from shared.folder.contract import Folder
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.software import own_software
from site_client.configuration import SiteConfiguration
from site_client.facts import current
from site_client.rotation import first_key, shown_key

logger = logging.getLogger(__name__)

PUBLIC_TROUBLE = "something at the site needs attention; its own status says what"
EVERY_S = 5.0  # between two heartbeats in the folder
PROGRESS_SHARE = 0.5  # of the time in the same phase: so much between two that differ in their progress alone
UNCHANGED_EVERY_S = 900.0  # between two that differ in their time alone
NOTED_EVERY_S = 1.0  # between two here, while nothing but progress changes


def last_status(work: Path) -> Status | None:
    """Return the last heartbeat here; None if there is none, or it is damaged, as the next will not be."""
    try:
        return fill(Status, open_signed((work / STATUS).read_bytes())[0])
    except (FileNotFoundError, Refusal):
        return None


def _software_since(work: Path) -> str | None:
    """Return which dropfed this is, if the site's card says another: it was updated since the site joined."""
    try:
        card, _ = open_signed((work / MIRROR / SITE_CARD).read_bytes())
    except (FileNotFoundError, Refusal):
        return None
    return own_software() if card.get("software") != own_software() else None


class Heartbeat:
    """Writes the status here when it changes, and into the folder at most every few seconds, or when told ``now``.

    Trouble that begins is told in both at once. What our last heartbeat in the folder tells of messages that a lost
    disk had, and that are not back yet, stays there; nor is less told than it until we know how much is there.

    Args:
        folder: the folder without retries; a heartbeat is not worth waiting for.
    """

    def __init__(self, work: Path, configuration: SiteConfiguration, folder: Folder, key: SigningKey) -> None:
        self.phase: Phase | None = None
        self.trouble: str | None = None
        self._public_trouble: str | None = None
        self._last: Status | None = None
        self._is_our_folder = False  # as far as was seen
        self._work = work
        self._configuration = configuration
        self._folder = ListedFolder(folder)
        self._sent: Status | None = None
        self._channel: Channel | None = None
        self._told: Head | None = None  # our last message that our heartbeat in the folder spoke of
        self._other: ActionRequiredError | None = None  # copy of this work directory, at work since we began
        self._key = key
        self._noted_at = self._sent_at = self._began_at = float("-inf")

    def begin(self, channel: Channel) -> None:
        """Note on this machine only that the daemon runs: the folder may be out of reach."""
        self._channel = channel
        self._say(self._status("waiting", channel, None, 0), sends=False)

    def note_trouble(self, error: DropfedError | None) -> None:
        """Report at once what stands in the way, or that nothing does any more: the work may be held up for long.

        A server that does not answer is not asked to take it, which would hold up the work for longer.
        """
        before = self.trouble
        self.trouble = sentence(str(error)) if error else None
        # A refused message, or a locked one, is the folder's matter, and told as it is; all else stays here, as what is
        # wrong with a file of this machine's.
        is_here = isinstance(error, RejectedError) and Path(error.file).is_absolute()
        is_the_folders = isinstance(error, RejectedError | LeftAloneError) and not is_here
        self._public_trouble = self.trouble if is_the_folders else PUBLIC_TROUBLE if error else None
        if self.trouble != before and self._last is not None:
            is_answered = error is not None and not isinstance(error, TransientError)
            self._say(self._last.model_copy(update={"time": now_text()}), sends=is_answered)

    def beat(
        self, phase: Phase, channel: Channel, ref: MessageRef | None = None, *, percent: int = 0, now: bool = False
    ) -> None:
        """Report where we stand, in the status file and, if it is due, in the folder."""
        service.alive()
        self._channel = channel
        time_s = time.monotonic()
        if phase == self.phase and time_s - self._noted_at < NOTED_EVERY_S and not now:
            return
        if phase != self.phase:
            self._began_at = time_s
        self.phase, self._noted_at = phase, time_s
        status = self._status(phase, channel, ref, percent)
        self._say(status, sends=now or time_s - self._sent_at >= self._pause_s(status))

    def _pause_s(self, status: Status) -> float:
        """Return how long to wait after the last heartbeat, in seconds, before this is sent."""
        if (sent := self._sent) is None:
            return EVERY_S
        said = self._public(status).model_copy(update={"time": sent.time})
        if said == sent:
            return UNCHANGED_EVERY_S
        is_progress = said.model_copy(update={"progress_percent": sent.progress_percent}) == sent
        return max(EVERY_S, PROGRESS_SHARE * (time.monotonic() - self._began_at)) if is_progress else EVERY_S

    def _status(self, phase: Phase, channel: Channel, ref: MessageRef | None, percent: int) -> Status:
        last = None if phase == "asked for consent" else current(channel.ledger)  # a survey is of no run
        ref = ref or (last.ref if last else None)
        return Status(
            federation=self._configuration.federation,
            site=self._configuration.site,
            time=now_text(),
            phase=phase,
            run=ref.run if ref else None,
            round=ref.round_no if ref else 0,
            progress_percent=percent,
            trouble=None,
            software=_software_since(self._work),
            own_head=channel.outbox.published_head,
            aggregator_head=channel.ledger.peer_head,
        )

    def _say(self, status: Status, *, sends: bool) -> None:
        """Write a status here, with what stands in the way, and perhaps send it; nothing that fails matters."""
        self._last = status
        public = self._public(status)
        service.show(f"{status_text(public.model_dump())}{f': {public.trouble}' if public.trouble else ''}")
        try:
            content = self._key.sign(public.model_copy(update={"trouble": self.trouble}).model_dump())
            write_file(self._work / STATUS, content, durable=False)  # a damaged one counts as none, and is written anew
        except OSError as error:
            logger.debug("heartbeat not written: %s", error)
        if sends:
            self._sent_at = time.monotonic()
            self._sent = None
            try:
                self._is_our_folder = self._is_our_folder or self._holds_our_card()
                if self._is_our_folder and self._has_what_was_told():
                    public = self._public(status)  # with what was told
                    self._folder.overwrite(STATUS, self._key.sign(public.model_dump()))
                    self._sent = public
            except (DropfedError, OSError) as error:
                logger.debug("heartbeat not sent: %s", error)

    def _public(self, status: Status) -> Status:
        """Return a status as the folder may have it."""
        is_held_up = self.trouble and status.phase in ("waiting", "asked for consent")
        phase = "trouble" if is_held_up else status.phase
        own_head = max(status.own_head, self._told or Head(), key=lambda head: head.seq)
        return status.model_copy(update={"phase": phase, "trouble": self._public_trouble, "own_head": own_head})

    def _holds_our_card(self) -> bool:
        """Return whether the card in the folder is the one here, and shows our key.

        Raises:
            DropfedError, OSError: one of them is not there, or cannot be read.
        """
        self._folder.look_anew()
        there = self._folder.read(SITE_CARD, max_bytes=MAX_RECORD_BYTES)
        here = (self._work / MIRROR / SITE_CARD).read_bytes()
        return there == here and shown_key(self._work) == first_key(self._work)

    def _has_what_was_told(self) -> bool:
        """Return whether this work directory has the messages of which our heartbeat in the folder speaks; another copy
        of the directory may have written it.
        """
        if self._channel is None:
            return True
        if self._folder.find(STATUS) is None:  # as far as was seen: there was none when we began
            self._folder.look_anew()
        ledger = self._channel.ledger
        told = last_told(self._folder, ledger.own)
        if ledger.is_from_another_copy(told):
            if self._told is not None:  # when we began, all of it was here
                self._other = another_copy(told, "in the folder")
            return False
        self._told = told
        return True

    def require_only_copy(self) -> None:
        """Check that no other copy of this work directory has signed anything since we began, as far as was seen.

        Raises:
            ActionRequiredError: one has.
        """
        if self._other is not None:
            raise self._other
