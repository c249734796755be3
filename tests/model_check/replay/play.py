"""One step of the model, done by the daemons on real files."""

from __future__ import annotations

from pathlib import Path
from random import Random

from shared.exchange import names
from shared.exchange.names import MessageRef
from tests.model_check import director
from tests.model_check.exchanges import sent_messages, told_messages
from tests.model_check.folder_sync import Look
from tests.model_check.replay.aggregator import AggregatorOnDisk
from tests.model_check.replay.looks import gap, ways
from tests.model_check.replay.site import SiteOnDisk
from tests.model_check.replay.stubs import Clock
from tests.model_check.rules import Rules
from tests.model_check.state import SITES, Folder, Hospital, State

DEADLINE_HOURS = 0.001  # less than what the daemon waits until it saves how long it has waited: a crash forgets it


class OnDisk:
    """A federation below ``home``, where nothing has happened yet.

    Args:
        random: says whether a site that reads a round sees the verdict on it already, where that is there.
    """

    def __init__(self, home: Path, rules: Rules, random: Random, clock: Clock) -> None:
        self._rules, self._random = rules, random
        deadlines = {"consent_deadline_hours": DEADLINE_HOURS, "round_deadline_hours": DEADLINE_HOURS}
        runs = [director.configuration(rules, run).model_copy(update=deadlines) for run in rules.runs]
        self.aggregator = AggregatorOnDisk(home, runs, clock)
        self.sites = {name: SiteOnDisk(home, name) for name in SITES}

    def can_play(self, name: str, before: State, after: State) -> bool:
        """Whether the daemons have a step of the model."""
        who, _, what = name.partition(": ")
        if what.startswith("folder-sync looks"):
            number = SITES.index(who)
            return any(ways(before.folders[number], after.folders[number].desk, self._rules))
        return what != "site misses it" or not self.sites[who].lacks_weights

    def play(self, name: str, before: State, after: State) -> None:
        """Do a step of the model."""
        who, _, what = name.partition(": ")
        if who == "aggregator":
            self._play_aggregator(what, before, after)
        else:
            number = SITES.index(who)
            part, _, what = what.partition(" ")
            play = self._play_folder_sync if part == "folder-sync" else self._play_site
            play(who, what, before.folders[number], after.folders[number])
        # That all is published is no step of the model: each end sees it before it does anything else.
        for site, (desk, hospital) in zip(SITES, after.folders, strict=True):
            if desk.published == len(desk.told):
                self.aggregator.settles(site)
            if hospital.published == len(hospital.sent):
                self.sites[site].settles()

    # --- the aggregator ------------------------------------------------------------------------------------

    def _play_aggregator(self, what: str, before: State, after: State) -> None:
        aggregator = self.aggregator
        match what:
            case "decides":
                aggregator.decides()
            case "dies":
                aggregator.open()
            case _ if what.startswith("begins"):
                aggregator.begins_next()
            case "the PI pauses the run":
                aggregator.store.pause()
            case "the PI resumes the run":
                aggregator.store.resume()
            case "the PI stops the run":
                aggregator.store.request_stop()
            case "the deadline passes":
                aggregator.deadline_passes()
            case _ if what == before.director.due:
                aggregator.does(lambda action: isinstance(action, director.FOR_RUN))
            case _:
                site = _whose_is_done(before, after)
                aggregator.does(lambda action: not isinstance(action, director.FOR_RUN) and action.site == site)

    def _play_folder_sync(self, site: str, what: str, before: Folder, after: Folder) -> None:
        match what.split():
            case ["cannot", *_]:
                self.aggregator.cannot_reach(site)
            case ["uploads", *_]:
                self.aggregator.publishes(site, manifests=0)
            case ["publishes", *_]:
                self.aggregator.publishes(site, manifests=1)
            case ["looks" | "looks,", *_]:
                look = next(ways(before, after.desk, self._rules))
                met = gap(before, look)
                if look.keeps_back:
                    self.aggregator.forgets_failures(site)  # a second torn read would be trouble
                for _ in met:  # each is held for a gap that is there to stay once a look has met it already
                    self._look(site, before, Look(visible=met, keeps_back=False, more=True, searches=False))
                self._look(site, before, look)
            case _:
                self.aggregator.enrols(site)

    def _look(self, site: str, before: Folder, look: Look) -> None:
        desk, hospital = before
        sent = sent_messages(hospital.sent, desk.told)
        hidden = frozenset(message.ref.manifest for message in sent if message.seq not in look.visible)
        withdrawals = [message.ref.path for message in sent if message.ref.kind == "withdrawal" and look.keeps_back]
        torn = frozenset(f"{path}/{names.WITHDRAWAL}" for path in withdrawals)  # of either run
        newest = max((each.round_no for each in desk.told if each.run == desk.run), default=0)
        with self.aggregator.lines[site].showing(hidden=hidden, torn=torn):
            self.aggregator.looks(site, newest=newest, more=look.more, searches=look.searches)

    # --- a site --------------------------------------------------------------------------------------------

    def _play_site(self, name: str, what: str, before: Folder, after: Folder) -> None:
        site = self.sites[name]
        match what.split():
            case ["dies"]:
                site.open()
            case ["rests"]:
                site.rests()
            case ["stops,", *_]:
                site.rotates()
            case ["has", "decided", *_]:
                site.is_told("withdraw", after.hospital.wants_out[-1])
            case ["uploads", *_]:
                site.publishes(0)
            case ["publishes", *_]:
                site.publishes(1)
            case ["signs", *_]:
                _signs(site, after.hospital)
            case _:
                if what.startswith("reads offer"):
                    site.looks_for_offers()
                with site.line.showing(hidden=self._unseen(before, after.hospital)):
                    site.acts()

    def _unseen(self, before: Folder, site: Hospital) -> frozenset[str]:
        """The aggregator's manifests that a site does not see in the step that leads there."""
        told = told_messages(before.desk.told)
        unseen = {message.ref for message in told[site.read :]}
        if site.read > before.hospital.read and self._random.random() < 1 / 2:
            read = told[site.read - 1].ref
            unseen.discard(MessageRef("verdict", read.run, read.round_no))
        return frozenset(ref.manifest for ref in unseen)


def _whose_is_done(before: State, after: State) -> str:
    """The site for which the aggregator did what was due."""
    folders = zip(SITES, before.folders, after.folders, strict=True)
    return next(site for site, one, other in folders if one.desk.due != other.desk.due)


def _signs(site: SiteOnDisk, after: Hospital) -> None:
    signed = after.sent[-1]
    if signed.kind == "consent":
        site.is_told("no" if signed.says == "no" else "yes", signed.run)
    if signed.says == "poison":
        site.signs_poison()
    else:
        site.acts()
