"""One site as the aggregator knows it: enrolment, channel, and the courier thread that talks to its folder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import DropfedError, NotFoundError, PoisonError, Stopped
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, Place
from shared.exchange.records import Federation, FileEntry, Invite, now_text
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import Correspondent, open_federation, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import disk_trouble, read_private, write_file
from shared.folder.retrying import RetryingFolder
from shared.polling import Polling

logger = logging.getLogger(__name__)

README_TEXT = """\
This folder is how one hospital and the aggregator of a federated-learning run exchange files (dropfed, protocol 1).
No images and no patient data are ever put here, only model weights, settings and summary numbers.

  federation.json   who takes part here, and under which public keys (written by the aggregator)
  site.json         the hospital's card (written by the hospital)
  status.json       the hospital's heartbeat, the only file that is ever overwritten
  runs/             one folder per run: the offer, the hospital's consent, every round, the final model

Every other folder holds one signed message; its manifest.json names each file with its SHA-256.
To check everything:  dropfed-audit verify THIS_FOLDER
Please do not change or remove anything here: every change is noticed and stops the exchange.
"""


@dataclass(frozen=True)
class Awaited:
    """A message the aggregator waits for, the digest it must answer, and bounds for reading it."""

    place: Place
    in_reply_to: str
    max_weights_bytes: int = 0
    missed: tuple[tuple[Place, str], ...] = ()  # older messages that may still come, with what they answer


class Site:
    """One site's files below ``sites/SITE`` and its folder.

    Args:
        home: ``sites/SITE`` in the work directory.
        on_news: called from the courier thread whenever something arrived or was sent.
    """

    def __init__(
        self,
        home: Path,
        folder: Folder,
        *,
        invite: Invite,
        key: SigningKey,
        stop: threading.Event,
        longest_pause_s: float,
        on_news: Callable[[], None],
    ) -> None:
        self.name = invite.site
        self.channel: Channel | None = None
        self.failure: BaseException | None = None
        self._home = home
        self._folder = RetryingFolder(folder, name=invite.site, stop=stop, on_trouble=self._note_trouble)
        self._invite = invite
        self._key = key
        self._stop = stop
        self._longest_pause_s = longest_pause_s
        self._on_news = on_news
        self._awaited: Awaited | None = None
        self._is_troubled = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"courier-{self.name}", daemon=True)
        self._open_channel()

    def start(self) -> None:
        """Start the courier."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the courier to end after the stop event was set."""
        self._wake.set()
        self._thread.join()

    def attend(self, awaited: Awaited | None) -> None:
        """Tell the courier what to wait for, and that something may have been sealed."""
        if awaited != self._awaited or (self.channel and self.channel.has_unpublished):
            self._awaited = awaited
            self._wake.set()

    # --- the courier's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        polling = Polling(self._longest_pause_s)
        try:
            while not self._stop.is_set():
                if self._work():
                    polling.restart()
                    self._on_news()
                elif self._wake.wait(polling.pause_s()):
                    polling.restart()
                    self._wake.clear()
        except Stopped:
            pass
        except BaseException as error:
            self.failure = error  # the daemon's thread raises it; a courier never dies unseen
            self._on_news()

    def _work(self) -> bool:
        """Do what can be done now; return whether anything happened. One site's trouble is told and waited out."""
        try:
            happened = self._step()
        except Stopped:
            raise
        except (DropfedError, OSError) as error:
            trouble = disk_trouble(error, self._home) if isinstance(error, OSError) else error
            if not self._is_troubled:
                logger.error("%s: %s", self.name, trouble)
            self._note_trouble(trouble)
            self._is_troubled = True
            self._stop.wait(self._longest_pause_s)
            return False
        if self._is_troubled:
            self._is_troubled = False
            self._note_trouble(None)
        return happened

    def _step(self) -> bool:
        if self.channel is None:
            return self._enrol()
        if self.channel.has_unpublished:
            self.channel.publish()
            return True
        awaited = self._awaited
        return awaited is not None and self._receive(self.channel, awaited)

    def _receive(self, channel: Channel, awaited: Awaited) -> bool:
        if channel.is_settled(awaited.place):
            return False  # the daemon has not looked yet
        manifest = channel.notice(awaited.place)
        if manifest is None:
            return False
        if channel.skips_messages(awaited.place, manifest):
            for place, in_reply_to in awaited.missed:
                if (older := channel.notice(place)) is not None:
                    self._fetch(channel, place, older, in_reply_to, awaited.max_weights_bytes)
        return self._fetch(channel, awaited.place, manifest, awaited.in_reply_to, awaited.max_weights_bytes)

    def _fetch(self, channel: Channel, place: Place, manifest: bytes, in_reply_to: str, max_weights_bytes: int) -> bool:
        try:
            return (
                channel.fetch(place, manifest, answers=(in_reply_to,), max_weights_bytes=max_weights_bytes) is not None
            )
        except PoisonError as error:
            channel.refuse(place, error, manifest)
            return True

    # --- enrolment -----------------------------------------------------------------------------------------

    def _enrol(self) -> bool:
        """Accept the site's card, then say in the folder who takes part under which keys."""
        try:
            card_bytes = self._folder.read(names.SITE_CARD, max_bytes=names.MAX_RECORD_BYTES)
        except NotFoundError:
            return False
        card = open_site_card(
            card_bytes,
            federation=self._invite.federation,
            site=self.name,
            secret=self._invite.enrolment_secret,
        )
        readme = README_TEXT.encode()
        federation = Federation(
            federation=self._invite.federation,
            site=self.name,
            aggregator_key=self._key.public,
            site_key=card.key,
            created=now_text(),
            files={names.README: FileEntry(size=len(readme), sha256=digest_of(readme))},
        )
        path = self._home / "mirror" / names.FEDERATION
        if not path.exists():
            write_file(path, self._key.sign(federation.model_dump()))
        self._folder.create(names.README, readme)
        self._folder.create(names.FEDERATION, path.read_bytes())
        write_file(path.with_name(names.README), readme)
        write_file(path.with_name(names.SITE_CARD), card_bytes)
        logger.info("%s is enrolled", self.name)
        self._open_channel()
        return True

    @property
    def card_digest(self) -> str:
        """SHA-256 of the site's card, which an offer answers."""
        return digest_of((self._home / "mirror" / names.SITE_CARD).read_bytes())

    def _open_channel(self) -> None:
        """Open the channel if the site is enrolled: its card, written last, is in the mirror."""
        mirror = self._home / "mirror"
        if (mirror / names.SITE_CARD).exists():
            federation = open_federation((mirror / names.FEDERATION).read_bytes(), aggregator_key=self._key.public)
            peer = Correspondent(federation.federation, self.name, self.name, federation.site_key)
            self.channel = Channel(self._home, self._folder, me=AGGREGATOR, key=self._key, peer=peer)

    def _note_trouble(self, error: DropfedError | None) -> None:
        """Keep the present trouble where ``status`` finds it."""
        path = self._home / "trouble.txt"
        if error is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != str(error):
            write_file(path, str(error).encode())


def read_invite(work: Path, site: str) -> Invite:
    """Read the invite made for a site, which also holds its enrolment secret.

    Raises:
        StandingError: it is missing or readable by others.
    """
    return Invite.model_validate_json(read_private(work / "invites" / f"{site}.json"))
