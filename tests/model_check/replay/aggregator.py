"""The aggregator's daemon and folder-sync workers on real files, taken step by step.

Nothing runs by itself, and one thread does it all. A daemon's call that is several of the model's steps is cut where
its folder is asked for the next file, as a daemon is that dies there or loses its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aggregator import rounds
from aggregator.daemon import Daemon
from aggregator.facts import awaited
from aggregator.folder_sync import FolderSync
from aggregator.model_work import Here
from aggregator.setup import initialise
from aggregator.site import read_invite
from aggregator.store import RunStore
from shared.errors import Stopped
from shared.exchange import names
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.learning.aggregation import Aggregation
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups
from shared.learning.round_engine import RoundEngine
from tests.model_check.replay.line import Line
from tests.model_check.replay.stubs import Clock, Unscored
from tests.model_check.state import SITES
from tests.played import TENSORS
from tests.staged import Network


class AggregatorOnDisk:
    """The aggregator's daemon and folder-sync workers below ``home``, with all runs begun and nobody asked yet.

    Args:
        runs: one after the other; the daemon of the first is open.
    """

    def __init__(self, home: Path, runs: Sequence[RunConfiguration], clock: Clock) -> None:
        self._work, self._clock = home / "aggregator", clock
        self._runs = list(runs)
        self.drops = {site: home / "drops" / site for site in SITES}
        for drop in self.drops.values():
            drop.mkdir(parents=True)
        initialise(self._work, "retina", {site: f"http://127.0.0.1/{site}/" for site in SITES}, AGGREGATOR)
        for run in runs:
            store = RunStore(self._work, run.run)
            store.begin(run, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
            _aggregation(store).begin(Network())
        self.open()

    @property
    def run(self) -> RunConfiguration:
        """The run whose turn it is."""
        return self._runs[0]

    def begins_next(self) -> None:
        """Begin the daemon of the run that waited."""
        del self._runs[0]
        self.open()

    def open(self) -> None:
        """Begin anew with what the files say, as a process does that is started; see ``SiteOnDisk.open``."""
        for before in getattr(self, "folder_syncs", {}).values():
            if before.channel is not None:
                before.channel.ledger.flush()
        self.store, *waiting = (RunStore(self._work, run.run) for run in self._runs)
        self.lines = {site: Line(drop, never_seen=frozenset({names.STATUS})) for site, drop in self.drops.items()}
        self._stops = {site: threading.Event() for site in SITES}
        self.folder_syncs = {site: self._folder_sync(site) for site in SITES}
        for folder_sync in self.folder_syncs.values():
            folder_sync._note_trouble(None)  # as `start` does, which begins the thread too
        heldout: Any = Unscored()
        self.daemon = Daemon(
            self.store,
            list(self.folder_syncs.values()),
            work=Here(RoundEngine(self.store, open_method("mean", {}), _aggregation(self.store)), heldout),
            in_turn=False,
            score_name="dice_mean",
            stop=threading.Event(),
            news=threading.Event(),
            waiting=lambda: waiting,
        )
        self.due: list[rounds.Action] = []

    def _folder_sync(self, site: str) -> FolderSync:
        return FolderSync(
            self._work / "sites" / site,
            self.lines[site],
            invite=read_invite(self._work, site),
            key=SigningKey.at(self._work / KEY_FILE),
            encryption_key=None,
            stop=self._stops[site],
            longest_interval_s=0.001,
            on_news=lambda: None,
        )

    # --- the daemon ----------------------------------------------------------------------------------------

    def decides(self) -> None:
        """Read the facts, and decide; what is due to a site in its run goes before the offer of a later one."""
        self.daemon._see_who_waits()
        due = rounds.decide(self.daemon._facts())
        busy = {getattr(action, "site", None) for action in due}
        self.due = [*due, *(offer for offer in self.daemon._early_offers() if offer.site not in busy)]

    def does(self, is_meant: Callable[[rounds.Action], bool]) -> None:
        """Do the one thing that was decided and is meant."""
        (action,) = filter(is_meant, self.due)
        self.due.remove(action)
        self.daemon._act(action)

    def deadline_passes(self) -> None:
        """Wait longer than the run waits for anything."""
        for seconds in (0.0, self.run.round_deadline_hours * 3600 + 0.1):
            self._clock.passes(seconds)
            self.daemon._waiting.seconds(self.store.round_no, passes=True)

    # --- the folder-sync workers --------------------------------------------------------------------------------------

    def enrols(self, site: str) -> None:
        """Look for a site's card."""
        self.folder_syncs[site].work()

    def publishes(self, site: str, manifests: int) -> None:
        """Bring the next message's payloads into a folder, and its manifest, if one gets through."""
        with self.lines[site].lets_through(manifests):
            self.folder_syncs[site].work()

    def settles(self, site: str) -> None:
        """See how far a folder has what was signed, as a folder-sync worker does first that was begun anew."""
        channel = self.folder_syncs[site].channel
        if channel is not None and channel.outbox.has_unpublished:
            self.folder_syncs[site].work()

    def looks(self, site: str, *, newest: int, more: bool, searches: bool) -> None:
        """Look into a site's folder.

        Args:
            newest: of its rounds in the run whose turn it is.
            more: look for all that the site may have sent, as when its heartbeat is not seen.
            searches: False: the look began before any was asked for.
        """
        folder_sync = self.folder_syncs[site]
        assert folder_sync.channel is not None
        folder_sync.attend(awaited(folder_sync.channel.ledger, self.run.run, newest))
        folder_sync._heard_at = float("-inf" if more else "inf")
        asked = folder_sync._asked_looks
        assert asked > folder_sync.looked or not searches
        folder_sync._asked_looks = asked if searches else folder_sync.looked
        folder_sync.work()
        folder_sync._asked_looks = asked

    def forgets_failures(self, site: str) -> None:
        """Have the next failure of each message count as its first."""
        channel = self.folder_syncs[site].channel
        assert channel is not None
        channel.inbox._failed.clear()

    def cannot_reach(self, site: str) -> None:
        """Try to look into a folder that does not answer, and be told to end while waiting for it."""
        folder_sync, stop = self.folder_syncs[site], self._stops[site]
        folder_sync._heard_at = float("-inf")
        stop.set()
        with self.lines[site].down(), suppress(Stopped):
            folder_sync.work()
        stop.clear()


def _aggregation(store: RunStore) -> Aggregation:
    return Aggregation(store, open_method("mean", {}), Groups())
