"""The aggregator's daemon and couriers on real files, taken step by step.

Nothing runs by itself, and one thread does it all. A daemon's call that is several of the model's steps is cut where
its folder is asked for the next file, as a daemon is that dies there or loses its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aggregator import rounds
from aggregator.daemon import Daemon
from aggregator.facts import awaited
from aggregator.setup import KEY_FILE, initialise
from aggregator.site import Site, read_invite
from aggregator.store import RunStore
from shared.errors import Stopped
from shared.exchange import names
from shared.exchange.names import AGGREGATOR
from shared.exchange.records import RunConfiguration, Sharing
from shared.exchange.signing import SigningKey
from shared.learning.aggregation import Aggregation
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups
from tests.model_check.replay.line import Line
from tests.model_check.replay.stubs import Clock, Unscored
from tests.model_check.state import RUN, SITES
from tests.played import TENSORS
from tests.staged import Network


class AggregatorOnDisk:
    """The aggregator's daemon and couriers below ``home``, with the run begun and nobody asked yet."""

    def __init__(self, home: Path, run: RunConfiguration, clock: Clock) -> None:
        self._work, self._run, self._clock = home / "aggregator", run, clock
        self.drops = {site: home / "drops" / site for site in SITES}
        for drop in self.drops.values():
            drop.mkdir(parents=True)
        initialise(self._work, "retina", {site: f"http://127.0.0.1/{site}/" for site in SITES}, AGGREGATOR)
        RunStore(self._work, RUN).begin(run, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
        self.open()
        self._aggregation().begin(Network())

    def open(self) -> None:
        """Begin anew with what the files say, as a process does that is started."""
        self.store = RunStore(self._work, RUN)
        self.lines = {site: Line(drop, never_seen=frozenset({names.STATUS})) for site, drop in self.drops.items()}
        self._stops = {site: threading.Event() for site in SITES}
        self.couriers = {site: self._courier(site) for site in SITES}
        for courier in self.couriers.values():
            courier._note_trouble(None)  # as `start` does, which begins the thread too
        heldout: Any = Unscored()
        self.daemon = Daemon(
            self.store,
            list(self.couriers.values()),
            heldout=heldout,
            method=open_method("mean", {}),
            aggregation=self._aggregation(),
            score_name="dice_mean",
            stop=threading.Event(),
            news=threading.Event(),
        )
        self.due: list[rounds.Action] = []

    def _courier(self, site: str) -> Site:
        return Site(
            self._work / "sites" / site,
            self.lines[site],
            invite=read_invite(self._work, site),
            key=SigningKey.at(self._work / KEY_FILE),
            stop=self._stops[site],
            longest_pause_s=0.001,
            on_news=lambda: None,
        )

    def _aggregation(self) -> Aggregation:
        return Aggregation(self.store, open_method("mean", {}), Groups())

    # --- the daemon ----------------------------------------------------------------------------------------

    def decides(self) -> None:
        """Read the facts, and decide."""
        self.due = rounds.decide(self.daemon._facts())

    def does(self, is_meant: Callable[[rounds.Action], bool]) -> None:
        """Do the one thing that was decided and is meant."""
        (action,) = filter(is_meant, self.due)
        self.due.remove(action)
        self.daemon._act(action)

    def deadline_passes(self) -> None:
        """Wait longer than the run waits for anything."""
        for seconds in (0.0, self._run.round_deadline_hours * 3600 + 0.1):
            self._clock.passes(seconds)
            self.daemon._waiting.seconds(self.store.round_no, passes=True)

    # --- the couriers --------------------------------------------------------------------------------------

    def enrols(self, site: str) -> None:
        """Look for a site's card."""
        self.couriers[site]._work()

    def publishes(self, site: str, manifests: int) -> None:
        """Bring the next message's payloads into a folder, and its manifest, if one gets through."""
        with self.lines[site].lets_through(manifests):
            self.couriers[site]._work()

    def settles(self, site: str) -> None:
        """See how far a folder has what was sealed, as a courier does first that was begun anew."""
        channel = self.couriers[site].channel
        if channel is not None and channel.has_unpublished:
            self.couriers[site]._work()

    def looks(self, site: str, *, newest: int, more: bool, searches: bool) -> None:
        """Look into a site's folder.

        Args:
            newest: of its rounds.
            more: look for all that the site may have sent, as when its heartbeat is not seen.
            searches: False: the look began before any was asked for.
        """
        courier = self.couriers[site]
        assert courier.channel is not None
        courier.attend(awaited(courier.channel, RUN, newest))
        courier._heard_at = float("-inf" if more else "inf")
        asked = courier._asked_looks
        assert asked > courier.looked or not searches
        courier._asked_looks = asked if searches else courier.looked
        courier._work()
        courier._asked_looks = asked

    def forgets_failures(self, site: str) -> None:
        """Have the next failure of each message count as its first."""
        channel = self.couriers[site].channel
        assert channel is not None
        channel._failed.clear()

    def cannot_reach(self, site: str) -> None:
        """Try to look into a folder that does not answer, and be told to end while waiting for it."""
        courier, stop = self.couriers[site], self._stops[site]
        courier._heard_at = float("-inf")
        stop.set()
        with self.lines[site].down(), suppress(Stopped):
            courier._work()
        stop.clear()
