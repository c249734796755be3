"""What the aggregator may do next: what ``aggregator.rounds`` decides, done one after the other; the PI and the clock.

The daemon reads the facts once, then does all that was decided; what happens meanwhile in the folders is what makes the
difference. So ``decides`` is a step, and each thing that was decided another. In which order it does what was decided
for different sites does not matter to the model: it may be any.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple

from aggregator import rounds
from aggregator.facts import early_offers, late_update, may_be_offered_early, run_facts, site_facts
from aggregator.store import withdrawal_of
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.learning.answers import SOUND, UNANSWERED, ClosedRound, decide
from shared.learning.run_files import Late, Scored
from tests.federation.running import run_configuration
from tests.model_check.exchanges import Known, called, known_at_desk, sent_messages, told_messages
from tests.model_check.properties import check_counted, check_order_of, expect
from tests.model_check.rules import Rules
from tests.model_check.state import NEXT, RUN, SITES, Desk, Director, Folder, Sent, Told

DEADLINE_S = 3600.0
_ANY_DIGEST = "0" * 64
FOR_RUN = (rounds.OpenRound, rounds.AskMore, rounds.CloseRound, rounds.Aggregate, rounds.ChooseFinal, rounds.Abort)


class View(NamedTuple):
    """What the aggregator knows of one folder: nothing that it does depends on more."""

    desk: Desk
    sent: tuple[Sent, ...]


def view_of(folder: Folder) -> View:
    """What the aggregator knows of a folder."""
    desk, hospital = folder
    return View(desk, hospital.sent[: desk.accepted + desk.refused])


@cache
def configuration(rules: Rules, run: str = RUN) -> RunConfiguration:
    """A run."""
    return run_configuration(
        run=run,
        sites=list(SITES),
        rounds=rules.rounds,
        tolerance=None,
        late="next" if rules.late_counts_next else None,
        quorum=rules.quorum,
        sites_per_round=rules.sites_per_round,
        consent_deadline_hours=DEADLINE_S / 3600,
        round_deadline_hours=DEADLINE_S / 3600,
    )


class Memory:
    """What the aggregator has recorded, as ``aggregator.facts`` reads it."""

    def __init__(self, director: Director, desks: dict[str, Desk]) -> None:
        self._director, self._desks = director, desks
        self.round_no = director.round_no
        self.paused, self.stop_requested = director.paused, director.stopped

    def participants(self, round_no: int) -> tuple[str, ...]:
        """As for any."""
        return tuple(name for name, desk in self._desks.items() if desk.takes_part)

    def score(self, round_no: int, site: str) -> object | None:
        """As for any."""
        return True if self._desks[site].scored else None

    def verdicts(self, round_no: int) -> object | None:
        """As for any."""
        return True if self._director.closed else None

    def has_aggregate(self, round_no: int) -> bool:
        """As for any."""
        return self._director.aggregated

    def card(self) -> object | None:
        """As for any."""
        return True if self._director.chosen else None

    def aborted(self) -> str | None:
        """As for any."""
        return "it was" if self._director.aborted else None


class Office:
    """The aggregator at one moment, with what it knows of both folders."""

    def __init__(self, director: Director, views: tuple[View, View], rules: Rules) -> None:
        self.director, self.views, self.rules = director, views, rules
        self.asked: set[str] = set()
        """The sites whose folders the facts have asked to look into."""
        self.desks = dict(zip(SITES, (view.desk for view in views), strict=True))
        self.sent = dict(zip(SITES, (view.sent for view in views), strict=True))
        self.known = {name: known_at_desk(view.desk, view.sent) for name, view in zip(SITES, views, strict=True)}

    @property
    def memory(self) -> Memory:
        """What is recorded."""
        return Memory(self.director, self.desks)

    def has_looked(self, site: str) -> bool:
        """As the daemon has it: while the run is paused no look counts, nor is one asked for."""
        if self.director.paused:
            return self.rules.rounds_need_no_look
        self.asked.add(site)
        desk = self.desks[site]
        return (desk.looked and not desk.noticed) or self.rules.rounds_need_no_look

    def facts(self) -> rounds.RunFacts:
        """The facts, by the daemon's own function."""
        sites: dict[str, Known | None] = {
            name: known if self.desks[name].enrolled else None for name, known in self.known.items()
        }
        return run_facts(
            configuration(self.rules, self.director.run),
            self.memory,
            sites,
            in_turn=self.rules.in_turn,
            waited_s=DEADLINE_S if self.director.overdue else 0.0,
            has_looked=self.has_looked,
            has_looked_since_stop=all(desk.stop_looked or desk.in_trouble for desk in self.desks.values()),
        )

    @cached_property
    def actions(self) -> list[rounds.Action]:
        """What the daemon would do now; reading the facts for it asks for looks."""
        return self.rules.aggregator_decides(self.facts())

    def site_facts(self, site: str) -> rounds.SiteFacts:
        """Those of one site."""
        desk = self.desks[site]
        return site_facts(
            site,
            self.known[site],
            self.memory,
            self.director.run,
            takes_part=desk.takes_part,
            has_looked=self.has_looked,
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing is decided that is not done."""
        return not self.director.due and not any(desk.due for desk in self.desks.values())

    @property
    def is_over(self) -> bool:
        """Whether the daemon ends: the run is over, and every folder says so."""
        if not (self.director.chosen or self.director.aborted) or not self.is_idle:
            return False
        all_told = not self.actions
        return all_told and all(desk.published == len(desk.told) for desk in self.desks.values())

    @property
    def is_last(self) -> bool:
        """Whether no run waits for its turn."""
        return not self.rules.queue or self.director.run == NEXT

    @property
    def early_offers(self) -> set[str]:
        """The sites that are asked now about the run that waits."""
        if self.is_last or self.director.chosen or self.director.aborted:
            return set()
        enrolled = {site: known for site, known in self.known.items() if self.desks[site].enrolled}
        return {offer.site for offer in early_offers(enrolled, NEXT)}


Result = tuple[str, bool, Director, tuple[Desk, Desk]]


def placed(folder: Folder, desk: Desk, name: str) -> Folder:
    """A folder whose aggregator's end has changed by a step of this name."""
    is_asked = name == "OpenRound" or (name == "AskMore" and not folder.desk.takes_part)
    if is_asked and desk.takes_part:
        published = folder.hospital.sent[: folder.hospital.published]
        had_left = any((message.kind, message.run) == ("withdrawal", desk.run) for message in published)
        desk = desk._replace(had_left=had_left)
    return folder._replace(desk=desk)


def results(director: Director, views: tuple[View, View], rules: Rules) -> list[Result]:
    """All that may happen at the aggregator, as far as it shows there."""
    office = Office(director, views, rules)
    found = [*_daemon_steps(office), *accidents(office)]
    return [(name, is_accident, after, (desks[SITES[0]], desks[SITES[1]])) for name, is_accident, after, desks in found]


Found = tuple[str, bool, Director, dict[str, Desk]]


def _daemon_steps(office: Office) -> Iterator[Found]:
    director, desks = office.director, office.desks
    if (office.is_over or office.rules.turns_overlap) and not office.is_last:
        yield next_turn(office)
    if office.is_over:
        return
    if office.is_idle:
        yield from decides(office)
        return
    if director.due:
        yield does(office)
    for site, desk in desks.items():
        if desk.due:
            name, after = does_for(office, site, desk.due)
            yield name, False, director, desks | {site: after._replace(due="")}


def next_turn(office: Office) -> Found:
    """The daemon of the run that waited begins."""
    desks = {site: desk._replace(run=NEXT) for site, desk in _ended(office.desks).items()}
    return f"begins {NEXT}", False, Director(run=NEXT), desks


def decides(office: Office) -> Iterator[Found]:
    """Read the facts, which ask for looks, and decide."""
    director, desks = office.director, {}
    actions = office.actions
    for_run = next((action for action in actions if isinstance(action, FOR_RUN)), None)
    for_sites = {action.site: type(action).__name__ for action in actions if not isinstance(action, FOR_RUN)}
    early = office.early_offers
    chosen = for_run.participants if isinstance(for_run, rounds.OpenRound | rounds.AskMore) else ()
    goes_on = not (director.chosen or director.aborted)
    for site, desk in office.desks.items():
        desks[site] = desk._replace(
            due=for_sites.get(site) or ("OfferEarly" if site in early else ""),
            chosen=site in chosen,
            asked_look=goes_on and not director.paused and (desk.asked_look or site in office.asked),
            looked=goes_on and not director.paused and desk.looked,
            asked_stop_look=goes_on and director.stopped,
            stop_looked=goes_on and desk.stop_looked,
        )
    after = director._replace(due=type(for_run).__name__ if for_run else "")
    if after != director or desks != office.desks:
        yield "decides", False, after, desks


def does(office: Office) -> Found:
    """Do what was decided for the run."""
    director, desks = office.director._replace(due=""), office.desks
    match office.director.due:
        case "OpenRound":
            director = director._replace(round_no=director.round_no + 1, closed=False, aggregated=False, overdue=False)
            desks = {site: _opened(desk, office.rules) for site, desk in desks.items()}
        case "AskMore":
            director = director._replace(overdue=False)
            desks = {site: _asked_too(desk) for site, desk in desks.items()}
        case "CloseRound":
            expect(not director.closed, "a round is closed twice")
            director = director._replace(closed=True, overdue=False)
            desks = _closed(office)
        case "Aggregate":
            director = director._replace(aggregated=True)
        case "ChooseFinal":
            expect(not director.chosen, "a final model is chosen twice")
            director, desks = director._replace(chosen=True, overdue=False), _ended(desks)
        case "Abort":
            expect(not director.chosen, "a run is aborted whose final model was chosen")
            director, desks = director._replace(aborted=True, overdue=False), _ended(desks)
    return office.director.due, False, director, desks


_UNLOOKED: dict[str, Any] = {"asked_look": False, "looked": False, "shown": ""}
_FORGOTTEN = _UNLOOKED | {"asked_stop_look": False, "stop_looked": False, "noticed": (), "in_trouble": False}
"""What a daemon that dies forgets of its looks."""


def _ended(desks: dict[str, Desk]) -> dict[str, Desk]:
    """What nothing depends on any more once the run is over, in one form."""
    return {
        site: desk._replace(
            takes_part=False, scored=False, status="", had_left=False, was_late=False, counted=(), **_FORGOTTEN
        )
        for site, desk in desks.items()
    }


def _opened(desk: Desk, rules: Rules) -> Desk:
    was_late = rules.late_counts_next and (desk.status == "late" or rules.late_counts_anyway)
    return desk._replace(takes_part=desk.chosen, chosen=False, scored=False, status="", was_late=was_late, **_UNLOOKED)


def _asked_too(desk: Desk) -> Desk:
    return desk._replace(takes_part=True, chosen=False, shown="") if desk.chosen else desk


class _AnyModel:
    """In place of an ``Aggregation``: every model that is accepted weighs the same."""

    def weights(self, answers: dict[str, Any]) -> dict[str, float]:
        """As for any."""
        return {site: 1 / len(answers) for site in answers}

    def why_left_out(self, count: int) -> str:
        """As for any."""
        return ""


def _closed(office: Office) -> dict[str, Desk]:
    """The verdicts, by the daemon's own functions."""
    run, round_no = configuration(office.rules, office.director.run), office.director.round_no
    participants = [site for site, desk in office.desks.items() if desk.takes_part]
    update = MessageRef("update", run.run, round_no)
    scored = {}
    for site in participants:
        refused = office.known[site].refusal(update)
        score = Scored(score=None, theta=None, reason=refused or "")
        scored[site] = score if office.desks[site].scored else None
    late = {}
    for site in participants:
        if late_update(office.known[site], run, round_no, was_late=office.desks[site].was_late) is not None:
            late[site] = Late(update=_ANY_DIGEST, scored=Scored(score=None, theta=None, reason=""))
    any_model: Any = _AnyModel()
    withdrawn = {site for site in participants if withdrawal_of(office.known[site], run.run) is not None}
    closed = ClosedRound(round_no, scored, None, lambda site: site, withdrawn, late)  # type: ignore[arg-type,return-value]
    verdicts = decide(run, closed, any_model)
    for site, verdict in verdicts.items():
        counts = verdict.status in SOUND
        message = office.known[site].message(update)
        expect(not counts or message is not None, "an update counts that was not accepted")
        expect(counts or message is None or not office.desks[site].scored, "an update is left out that was scored")
    desks = dict(office.desks)
    for site, verdict in verdicts.items():
        desks[site] = desks[site]._replace(status=verdict.status)
        if office.rules.late_counts_next and verdict.share > 0:
            of_round = round_no - 1 if verdict.late else round_no
            desks[site] = desks[site]._replace(counted=(*desks[site].counted, (of_round, round_no)))
            check_counted(desks[site].counted)
    return desks


def does_for(office: Office, site: str, due: str) -> tuple[str, Desk]:
    """Do what was decided for a site, if it still may be done; say what was done."""
    desk, known, round_no, run = office.desks[site], office.known[site], office.director.round_no, office.director.run
    match due:
        case "SignOffer":
            return _signed(office, desk, site, Told("offer", 0, 0, run))
        case "OfferEarly":
            if office.rules.offers_come_anywhere or may_be_offered_early(known, NEXT):
                return _signed(office, desk, site, Told("offer", 0, 0, NEXT))
        case "SignRound":
            if office.site_facts(site).may_be_sent_round:
                _check_look(office, desk)
                desk = desk._replace(shown="", had_left=False)
                return _signed(office, desk, site, Told("round", round_no, desk.accepted, run))
        case "Score":
            return f"scores what {site} answered", desk._replace(scored=True)
        case "SignVerdict":
            update = known.message(MessageRef("update", run, round_no))
            has_answered = desk.status not in UNANSWERED and update is not None
            answers = update.seq if has_answered and update else None
            return _signed(office, desk, site, Told("verdict", round_no, answers, run))
        case "SignFinal" | "SignAbort":
            end = rounds.due_end(office.site_facts(site), final_chosen=office.director.chosen)
            if end is not None and type(end).__name__ == due:
                kind: Kind = "final" if due == "SignFinal" else "abort"
                return _signed(office, desk, site, Told(kind, 0, desk.accepted, run))
    return f"leaves {due} for {site}", desk


def _signed(office: Office, desk: Desk, site: str, message: Told) -> tuple[str, Desk]:
    told = (*desk.told, message)
    is_new = all(
        (each.kind, each.round_no, each.run) != (message.kind, message.round_no, message.run) for each in desk.told
    )
    expect(is_new, "a message is signed twice")
    if office.rules.queue and not desk.refused:
        check_order_of(told_messages(told), sent_messages(office.sent[site], told))
    return f"signs {called(message)} for {site}", desk._replace(told=told)


def _check_look(office: Office, desk: Desk) -> None:
    expect(desk.shown != "", "a round is signed for a site whose folder was not looked into since the round was opened")
    expect(desk.shown != "withdrawal", "a round is signed for a site after a look that showed its withdrawal")
    missed = desk.had_left and not office.rules.looks_may_miss
    expect(not missed, "a round is signed for a site whose withdrawal was in its folder when the round was opened")


def accidents(office: Office) -> Iterator[Found]:
    """What the PI and the clock may do, and that the daemon may die."""
    director, desks, rules = office.director, office.desks, office.rules
    goes_on = not (director.chosen or director.aborted)
    if rules.crashes:
        dead = {site: desk._replace(due="", chosen=False, **_FORGOTTEN) for site, desk in desks.items()}
        after = director._replace(due="", overdue=False)
        if (after, dead) != (director, desks):
            yield "dies", True, after, dead
    if rules.pauses and goes_on:
        if director.paused:
            yield "the PI resumes the run", False, director._replace(paused=False), desks
        else:
            yield "the PI pauses the run", True, director._replace(paused=True), desks
    if rules.stops and goes_on and not director.stopped:
        yield "the PI stops the run", False, director._replace(stopped=True), desks
    is_waiting = goes_on and not (director.paused or director.stopped or director.closed)
    if rules.deadlines and is_waiting and not director.overdue:
        yield "the deadline passes", False, director._replace(overdue=True), desks
