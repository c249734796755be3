"""Between the server and a directory of this site: what ``dropfed-site move`` does where the daemon has no network.

The daemon works in the directory as in any drop folder (``exchange`` in ``site.yaml``). Here its messages go to the
server and the aggregator's come from there, each as it is: payloads first, the manifest last. Nothing is signed here,
so no key is needed; and the daemon believes nothing for its having been moved. The directory is afterwards what the
server's folder is, and an auditor may read either.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from shared.doors import Refusal
from shared.doors.numbers import whole
from shared.doors.schema import AnyRecord
from shared.errors import (
    ActionRequiredError,
    ConfigurationError,
    DropfedError,
    NotFoundError,
    RejectedError,
    Stopped,
    TransientError,
)
from shared.exchange import names
from shared.exchange.encoding import max_weights_bytes
from shared.exchange.handovers import not_as_it_was_left
from shared.exchange.last_heartbeat import another_copy, last_told
from shared.exchange.names import AGGREGATOR, MAX_RECORD_BYTES, MAX_START_BYTES, Kind, MessageRef, is_weights
from shared.exchange.places import places_in, runs_in
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.messages import Manifest
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import time_text
from shared.exchange.records.wire import FileEntry
from shared.exchange.retention import may_be_removed
from shared.exchange.signing import digest_of, open_signed
from shared.exchange.trust import Message, Peer, check_sizes, open_federation, open_site_card
from shared.folder.contract import Folder
from shared.folder.durable import disk_trouble, sync_file, write_file
from shared.folder.forbearing import ForbearingFolder
from shared.folder.listed import HAS_TAG, ListedFolder
from shared.folder.local import LocalFolder
from shared.folder.lock import make_work, work_lock
from shared.folder.ownership import make_folder
from shared.folder.retrying import RetryingFolder
from shared.folder.stopping import cut_after
from shared.plurals import pluralize
from shared.polling import Polling
from shared.sizes import size_text
from shared.trouble import Trouble, tolerate_unwritable
from site_client.configuration import FILE, SiteConfiguration, open_exchange, open_server
from site_client.store import is_paused

logger = logging.getLogger(__name__)

_ENDS: tuple[Kind, ...] = ("final", "abort")
HOME = "move"
"""Name of the folder in the work directory for what the mover keeps."""
MOVED = "moved.txt"
"""Name of the file that lists what of this site's is on the server: one path a line."""
LOOKED = "looked.txt"
"""Name of the file that was written when the mover last looked: what stood in its way; empty where nothing did."""


def move(work: Path, configuration: SiteConfiguration, stop: Event, *, once: bool) -> None:
    """Move what is new until asked to stop; with ``once``, until nothing is.

    Raises:
        ConfigurationError: ``site.yaml`` names no directory.
        ActionRequiredError: somebody else moves here.
        DropfedError: with ``once``, what stands in the way.
    """
    if configuration.exchange is None:
        raise ConfigurationError([f"{work / FILE}: exchange: names no directory to move to and from; name one there"])
    make_work(home := work / HOME)
    with work_lock(home, "another `dropfed-site move` works here; wait for it, or stop it first"):
        retrying = RetryingFolder(
            ForbearingFolder(open_server(work, configuration)),
            name="the folder",
            stop=stop,
            give_up_after_s=60.0 if once else None,
        )
        server = ListedFolder(retrying, has_tag=(work / HAS_TAG).exists())
        aggregator = Peer(configuration.federation, configuration.site, AGGREGATOR, configuration.aggregator_key)
        mover = Mover(home, server, open_exchange(work, configuration.exchange), aggregator)
        polling, trouble = Polling(configuration.poll_seconds), Trouble(logger, configuration.site, "goes on.")
        with cut_after(stop, server.interrupt), suppress(Stopped):
            while not stop.is_set():
                try:
                    has_moved = mover.move(is_paused=is_paused(work))
                    trouble.ends()
                    _note_look(home)
                except Stopped:
                    raise
                except (DropfedError, OSError) as error:
                    met = disk_trouble(error, work) if isinstance(error, OSError) else error
                    _note_look(home, met)
                    if once:
                        raise
                    trouble.begins(met)
                    has_moved = False
                if has_moved:
                    polling.restart()
                elif once:
                    return
                else:
                    stop.wait(trouble.backoff_s(polling.interval_s()))


def _note_look(home: Path, met: DropfedError | None = None) -> None:
    path = home / LOOKED
    with tolerate_unwritable(path):
        write_file(path, str(met or "").encode())


@dataclass(frozen=True)
class LastLook:
    """When a mover last looked, in UTC, and what stood in its way; empty where nothing did."""

    at: str
    trouble: str


def last_look(work: Path) -> LastLook | None:
    """Return what the mover of a work directory noted last; None if none has looked yet."""
    path = work / HOME / LOOKED
    if not path.exists():
        return None
    return LastLook(time_text(path.stat().st_mtime), path.read_text(encoding="utf-8"))


class Mover:
    """Moves what is new, both ways. What ends it takes nothing away: the next one goes on.

    Args:
        home: where it keeps what it has moved.
        here: the directory.
        aggregator: who signs what comes from the server.
    """

    def __init__(self, home: Path, server: ListedFolder, here: LocalFolder, aggregator: Peer) -> None:
        self._list, self._server, self._here, self._aggregator = home / MOVED, server, here, aggregator
        self._moved = set(self._list.read_text().splitlines()) if self._list.exists() else set[str]()
        self._status: str | None = None
        self._told: set[str] = set()
        self._manifests: dict[MessageRef, Manifest] = {}  # of the directory; none changes once it is there
        self._has_looked_back = False

    def move(self, *, is_paused: bool = False) -> bool:
        """Move all that is new; return whether anything was.

        Args:
            is_paused: whether people have paused the site: then the heartbeat alone goes to the server.

        Raises:
            DropfedError: what stands in the way.
        """
        self._server.look_anew()
        if not self._has_looked_back:
            is_taken_back = self._take_back()
            self._forget_lost()
            self._has_looked_back = self._is_all_here()
            if is_taken_back:
                return True
        # The heartbeat comes last of what goes, for it tells of the messages.
        sent = not is_paused and self._send()
        self._send_status()
        fetched = self._fetch()
        for run in runs_in(self._here):
            self._forget_weights(run)
        return sent or fetched

    def _is_all_here(self) -> bool:
        """Return whether this site's card is here, and every message of its of which the heartbeat here speaks: the
        server may show the newest late.
        """
        if (card := self._read_here(names.SITE_CARD)) is None:
            return False
        own, _ = self._with_keys(self._own(card))
        return last_told(self._here, own).seq <= max(
            (manifest.seq for _, manifest in self._messages_here(from_site=True)), default=0
        )

    # --- to the server -------------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Bring what the daemon has left: a key before what it signs."""
        before = len(self._moved)
        for path in self._records():
            if path not in self._moved:
                self._server.create(path, self._read(path))
                self._note(path)
        for ref, manifest in self._messages_here(from_site=True):
            self._send_message(ref, manifest)
        return len(self._moved) > before

    def _send_status(self) -> None:
        if (status := self._read_here(names.STATUS)) is not None and digest_of(status) != self._status:
            self._require_only_copy()
            self._server.overwrite(names.STATUS, status)
            self._status = digest_of(status)

    def _forget_lost(self) -> None:
        """Have sent again what the server has lost, as one that was put back from a backup: records, and the messages
        that are the newest.
        """
        self._moved -= {path for path in self._records() if self._server.find(path) is None}
        for ref, _ in reversed(self._messages_here(from_site=True)):
            if ref.manifest in self._moved:
                if self._server.find(ref.manifest) is not None:
                    return
                self._moved -= {path for path in self._moved if path.startswith(f"{ref.path}/")}
                logger.warning("%s is not on the server any more: it is sent again", ref.path)

    def _records(self) -> list[str]:
        """Return the paths of the daemon's records that are part of no message: its card, keys, answers to surveys."""
        card = [names.SITE_CARD] if self._read_here(names.SITE_CARD) is not None else []
        return [*card, *_lasting_records(self._here, names.KEYS), *_lasting_records(self._here, names.SHEETS)]

    def _messages_here(self, *, from_site: bool) -> list[tuple[MessageRef, Manifest]]:
        """Return where the daemon's messages lie, or the aggregator's, in the order in which they were signed.

        Raises:
            ActionRequiredError: one is not as it was left.
        """
        found = []
        for run in runs_in(self._here):
            for ref in places_in(self._here, run):
                if ref.is_from_site != from_site:
                    continue
                if ref not in self._manifests and (content := self._read_here(ref.manifest)) is not None:
                    self._manifests[ref] = self._manifest(ref, content)
                if ref in self._manifests:
                    found.append((ref, self._manifests[ref]))
        return sorted(found, key=lambda each: each[1].seq)

    def _manifest(self, ref: MessageRef, content: bytes) -> Manifest:
        try:
            body, _ = open_signed(content)
            return check_record(body, Manifest, ref.manifest)
        except (Refusal, ConfigurationError) as error:
            reason = RejectedError(ref.manifest, str(error))
            raise not_as_it_was_left(self._here.locate(ref.manifest), reason) from None

    def _send_message(self, ref: MessageRef, manifest: Manifest) -> None:
        """Bring a message to the server, or take back there what of it the daemon has removed by the run's rule.

        Raises:
            ActionRequiredError: it is not whole here, or the server has another.
        """
        is_there, kept = ref.manifest in self._moved, {entry.name for entry in self._here.entries(ref.path)}
        if not is_there:
            self._require_only_copy()
            self._require_no_other_there(ref)
        for name, entry in sorted(manifest.files.items()):
            path = f"{ref.path}/{name}"
            may_lack = name not in kept and is_weights(name) and self._may_lack_weights(ref)
            if not is_there and name in kept:
                self._require_as_signed(path, entry)
                self._server.upload(path, self._here.locate(path), sha256=entry.sha256)
            elif not is_there and not may_lack:  # a disk that nodes share may show it late
                raise not_as_it_was_left(self._here.locate(path), RejectedError(path, "is missing"))
            elif may_lack and path not in self._moved:
                self._server.remove(path)
                self._note(path)
        if not is_there:
            self._server.create(ref.manifest, self._read(ref.manifest))
            self._note(ref.manifest)
            logger.info("brought %s to the server", ref.path)

    def _require_only_copy(self) -> None:
        """Check that our heartbeat on the server tells of no message that is not from here.

        Raises:
            ActionRequiredError: it does.
        """
        card = self._read_here(names.SITE_CARD)
        if card is None or not self._has_looked_back:
            return
        own, _ = self._with_keys(self._own(card))
        told, messages = last_told(self._server, own), self._messages_here(from_site=True)
        is_ahead = told.seq > max((manifest.seq for _, manifest in messages), default=0)
        of_number = [ref for ref, manifest in messages if manifest.seq == told.seq]
        is_settled = own.key_of(told.seq) != own.newest_key  # with the hand-over; that key may be in other hands
        self._has_looked_back = not is_ahead  # the server may show late what another state of this directory has sent
        if is_ahead or any(not is_settled and digest_of(self._read(ref.manifest)) != told.digest for ref in of_number):
            raise another_copy(told, "on the server")

    def _require_no_other_there(self, ref: MessageRef) -> None:
        """Check that nothing else than what is here was sent in a message's place, before any of it is replaced."""
        is_listed = self._server.find(ref.manifest) is not None
        if is_listed and self._read_there(ref.manifest) not in (None, self._read(ref.manifest)):
            raise ActionRequiredError(
                f"{ref.manifest} on the server is another than the one here: this work directory is older than what "
                "this site has signed, or a second daemon has its key; stop the daemon, and put the files of the "
                "backup into an empty WORK, as after a lost disk; nothing more is sent meanwhile"
            )

    def _require_as_signed(self, path: str, entry: FileEntry) -> None:
        if self._here.hash(path) != (entry.size, entry.sha256):
            reason = RejectedError(path, "is not the file its manifest names (SHA-256 differs)")
            raise not_as_it_was_left(self._here.locate(path), reason)

    def _may_lack_weights(self, ref: MessageRef) -> bool:
        """Return whether the daemon may have removed the weights of its message, as far as can be read here."""
        return ref.round_no in self._settled(ref.run) and self._keep(ref.run) != "all"

    def _note(self, *paths: str) -> None:
        self._moved.update(paths)
        write_file(self._list, "".join(f"{each}\n" for each in sorted(self._moved)).encode())

    # --- from the server -----------------------------------------------------------------------------------

    def _take_back(self) -> bool:
        """Bring here what this site has signed and the directory has not, as after a lost disk; the card comes last,
        for until that is here the daemon signs nothing. Return whether there was anything.

        Raises:
            RejectedError: of a site that lost its disk, what lies on the server is not all its own, or not whole.
        """
        card = self._read_here(names.SITE_CARD)
        if (shown := card or self._read_there(names.SITE_CARD)) is None:
            return False  # it has not joined yet
        self._fetch_records()
        own, _ = self._with_keys(self._own(shown))
        for path in _lasting_records(self._server, names.SHEETS):
            if self._read_here(path) is None and (sheet := self._read_there(path)) is not None:
                self._take_back_sheet(own, path, sheet)
        missing = self._new_messages(own, is_lost=card is None)
        for message, manifest in missing:
            if card is not None and not self._is_fetched(message, manifest, may_lack=True):
                return False  # the daemon has its own; what it signs in that place is compared before it is sent
            if card is None:
                self._fetch_message(message, manifest, may_lack=True)
            weights = [f"{message.ref.path}/{name}" for name in message.manifest.files if is_weights(name)]
            self._note(message.ref.manifest, *(path for path in weights if not self._here.locate(path).exists()))
        if card is None:
            self._fetch()
            self._require_whole(shown)
            if (status := self._read_there(names.STATUS)) is not None:  # it speaks of what may be kept back
                self._here.overwrite(names.STATUS, status)
            self._here.create(names.SITE_CARD, shown)
            self._note(*self._records())
            signed = pluralize(len(missing), "message")
            logger.warning("brought this site's card, and %s that it had signed, from the server", signed)
        return card is None or bool(missing)

    def _require_whole(self, card: bytes) -> None:
        """Check that of what this site has signed nothing is missing that was numbered, or answered, after it.

        Raises:
            TransientError: something is; the server may show it late.
        """
        own = self._messages_here(from_site=True)
        known = {digest_of(card), *(digest_of(self._read(ref.manifest)) for ref, _ in own)}
        answered = {manifest.in_reply_to for _, manifest in self._messages_here(from_site=False)}
        if [manifest.seq for _, manifest in own] != [*range(1, len(own) + 1)] or not answered - {None} <= known:
            raise TransientError(
                "the server does not show all that this site has signed: nothing is done before it does; if it stays "
                "so, have the newest backup of the folder put back there"
            )

    def _take_back_sheet(self, own: Peer, path: str, sheet: bytes) -> None:
        """Bring an answer to a survey here, if it is this site's."""
        number = _number_of(path)
        survey = self._read_here(names.survey_path(number))
        try:
            if survey is not None:
                own.open_sheet(sheet, self._aggregator.open_survey(survey, number), digest_of(survey))
                self._here.create(path, sheet)
        except RejectedError as error:
            self._leave_there(path, error)

    def _own(self, card: bytes) -> Peer:
        """Return this site as its card shows it.

        Raises:
            RejectedError: it is no card of this site.
        """
        us, federation = self._aggregator, self._read_here(names.FEDERATION)
        key = open_site_card(card, federation=us.federation, site=us.site, secret=None).key
        if federation is not None and key != open_federation(federation, aggregator_key=None).site_key:
            raise RejectedError(names.SITE_CARD, f"shows another key than {names.FEDERATION}")
        return Peer(us.federation, us.site, us.site, key)

    def _fetch(self) -> bool:
        """Bring what the aggregator has left."""
        found = self._fetch_records()
        seq = max((manifest.seq for _, manifest in self._messages_here(from_site=False)), default=0)
        new = self._new_messages(self._aggregator)
        settled = {(each.ref.run, each.ref.round_no) for each, _ in new if each.ref.kind == "verdict"}
        for message, manifest in new:  # none without the one before it, which a torn read may lack
            ref = message.ref
            may_lack = ref.kind == "round" and (ref.run, ref.round_no) in settled
            if message.manifest.seq == seq + 1 and self._is_fetched(message, manifest, may_lack):
                seq, found = seq + 1, True
        return found

    def _fetch_records(self) -> bool:
        """Bring what the aggregator has left that is part of no message. Whether a key is followed, people decide."""
        self._aggregator, found = self._with_keys(self._aggregator)
        for path in (names.FEDERATION, names.README, *_lasting_records(self._server, names.SURVEYS)):
            if self._read_here(path) is None and (content := self._read_there(path)) is not None:
                found |= self._is_record_fetched(path, content)
        return found

    def _with_keys(self, sender: Peer) -> tuple[Peer, bool]:
        """Bring here a sender's hand-overs that hold; return the sender with them, and whether one was new here."""
        found = False
        while True:
            path = names.handover_path(sender.next_key_number, sender.sender)
            if (content := self._read_there(path) or self._read_here(path)) is None:
                return sender, found
            try:
                sender = sender.hand_over(content)
            except RejectedError as error:
                self._leave_there(path, error)
                return sender, found
            found |= self._read_here(path) is None
            self._here.create(path, content)

    def _is_record_fetched(self, path: str, content: bytes) -> bool:
        """Bring a record here that is part of no message, if the aggregator has signed it for this site."""
        try:
            self._check_record(path, content)
        except RejectedError as error:
            self._leave_there(path, error)
            return False
        self._here.create(path, content)
        return True

    def _check_record(self, path: str, content: bytes) -> None:
        """Check federation.json, README.txt, whose hash stands there, or a survey. A torn one would stay here for good.

        Raises:
            RejectedError: it is not the aggregator's, or not for this site.
        """
        if names.is_survey(path):
            self._aggregator.open_survey(content, _number_of(path))
            return
        signed = content if path == names.FEDERATION else self._read_here(names.FEDERATION) or b""
        federation = open_federation(signed, aggregator_key=self._aggregator.key)
        if (federation.federation, federation.site) != (self._aggregator.federation, self._aggregator.site):
            raise RejectedError(path, f"was written for {federation.federation}/{federation.site}")
        if path == names.README and federation.files[path].sha256 != digest_of(content):
            raise RejectedError(path, f"is not the file {names.FEDERATION} names (SHA-256 differs)")

    def _new_messages(self, sender: Peer, *, is_lost: bool = False) -> list[tuple[Message, bytes]]:
        """Return what a sender has left that is not here, in the order in which it signed it; of the aggregator in the
        runs that have not ended.

        Args:
            is_lost: this is the site, and lost its disk: then anything that is not its own may hide what is.

        Raises:
            RejectedError: so it is.
        """
        found, is_own = [], sender.sender != AGGREGATOR
        for run in runs_in(self._server):
            if any(self._is_here(MessageRef(end, run)) for end in _ENDS):
                continue
            for ref in places_in(self._server, run, but=() if is_own else self._settled(run)):
                if ref.is_from_site != is_own or self._is_here(ref):
                    continue
                if content := self._read_there(ref.manifest):
                    try:
                        found.append((sender.open_out_of_order(content, ref), content))
                    except RejectedError as error:
                        if is_lost:
                            raise
                        self._leave_there(ref.path, error)
        return sorted(found, key=lambda each: each[0].manifest.seq)

    def _is_fetched(self, message: Message, manifest: bytes, may_lack: bool) -> bool:
        """Bring a message here, if it is what its manifest says; return whether it was."""
        try:
            self._fetch_message(message, manifest, may_lack)
        except RejectedError as error:
            self._leave_there(message.ref.path, error)
            return False
        return True

    def _leave_there(self, path: str, error: RejectedError) -> None:
        """Report once that an invalid file or message stays on the server; what follows it waits."""
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.warning("%s is left on the server: %s", path, error)

    def _fetch_message(self, message: Message, manifest: bytes, may_lack: bool) -> None:
        """Bring a message here, its manifest last and once all else is on the disk.

        Args:
            may_lack: its weights may have been removed by the run's rule.

        Raises:
            RejectedError: a payload is larger than it can be, is not there or is another.
        """
        check_sizes(message, self._max_weights_bytes(message.ref))
        self._require_room(message)
        for name, entry in sorted(message.manifest.files.items()):
            path = f"{message.ref.path}/{name}"
            target = self._here.locate(path)
            make_folder(target.parent)
            try:
                sha256 = self._server.download(path, target, size=entry.size)
            except NotFoundError:
                if may_lack and is_weights(name):
                    continue
                raise RejectedError(path, "is named by its manifest but is not there") from None
            if sha256 != entry.sha256:
                raise RejectedError(path, "is not the file its manifest names (SHA-256 differs)")
            sync_file(target)
        self._here.create(message.ref.manifest, manifest)
        logger.info("brought %s from the server", message.ref.path)

    def _require_room(self, message: Message) -> None:
        """Check that there is room for a message before moving it, so that nothing is begun that cannot be ended.

        Raises:
            ActionRequiredError: there is no room.
        """
        size, room = sum(entry.size for entry in message.manifest.files.values()), self._here.room() or 0
        if size > room:
            raise ActionRequiredError(
                f"{message.ref.path} has {size_text(size)}, and {self._here.root} has room for {size_text(room)}: free "
                "some, or move the directory to a larger disk"
            )

    def _forget_weights(self, run: str) -> None:
        """Remove the aggregator's weights that its rule no longer keeps on the server."""
        if (keep := self._keep(run)) is None:
            return
        settled = self._settled(run)
        for ref in [ref for ref in places_in(self._here, run) if ref.kind == "round" and self._is_here(ref)]:
            if may_be_removed(keep, ref, settled=settled, chosen=None):
                for entry in filter(lambda each: is_weights(each.name), self._here.entries(ref.path)):
                    self._here.remove(f"{ref.path}/{entry.name}")

    def _keep(self, run: str) -> str | None:
        """Return the run's rule of what is kept; None where it cannot be read here."""
        configuration = self._offered(run, names.RUN_CONFIGURATION, RunConfiguration)
        return configuration.keep if configuration else None

    def _max_weights_bytes(self, ref: MessageRef) -> int:
        """Return the most bytes of tensor files that a message may bring: by the offer, where that can be read here."""
        if ref.kind == "offer":
            return MAX_START_BYTES
        configuration = self._offered(ref.run, names.RUN_CONFIGURATION, RunConfiguration)
        sharing = self._offered(ref.run, names.TENSORS, Sharing)
        if configuration is None or sharing is None:
            return MAX_START_BYTES
        return max_weights_bytes(sharing, ref.kind, configuration.wire)

    def _offered(self, run: str, name: str, kind: type[AnyRecord]) -> AnyRecord | None:
        """Return a record of a run's offer; None where it cannot be read here, as where it is encrypted."""
        content = self._read_here(f"{MessageRef('offer', run).path}/{name}")
        try:
            return parse_yaml(content, kind, name) if content else None
        except ConfigurationError:  # the daemon says what is wrong with it
            return None

    def _settled(self, run: str) -> set[int]:
        """Return the rounds of a run whose verdict is here."""
        places = [ref for ref in places_in(self._here, run) if ref.kind == "verdict"]
        return {ref.round_no for ref in places if self._is_here(ref)}

    # --- either folder -------------------------------------------------------------------------------------

    def _is_here(self, ref: MessageRef) -> bool:
        return self._read_here(ref.manifest) is not None

    def _read(self, path: str) -> bytes:
        return self._here.read(path, max_bytes=MAX_RECORD_BYTES)

    def _read_here(self, path: str) -> bytes | None:
        return self._here.read_or_none(path, max_bytes=MAX_RECORD_BYTES)

    def _read_there(self, path: str) -> bytes | None:
        """Return what the server has; None also of what is larger than any record, which holds up nothing else."""
        try:
            return self._server.read_or_none(path, max_bytes=MAX_RECORD_BYTES)
        except RejectedError as error:
            self._leave_there(path, error)
            return None


def _number_of(path: str) -> int:
    """Return the number that a survey or its answer is called by."""
    return whole(path[-len("0001.json") : -len(".json")].lstrip("0"))


def _lasting_records(folder: Folder, where: str) -> list[str]:
    return [path for entry in folder.entries(where) if names.is_lasting_record(path := f"{where}/{entry.name}")]
