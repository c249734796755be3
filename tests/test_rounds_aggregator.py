"""The aggregator's decisions, played through: a random federation always ends, and never breaks its own rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.rounds import (
    Action,
    Aggregate,
    ChooseFinal,
    CloseRound,
    GiveUp,
    OpenRound,
    RunFacts,
    Score,
    SealFinal,
    SealOffer,
    SealRound,
    SealVerdict,
    SiteFacts,
    decide,
)

DEADLINE_S = 10.0


def run(*sites: SiteFacts, **facts: object) -> RunFacts:
    settings: dict[str, object] = {
        "rounds": 2,
        "quorum": 1,
        "consent_deadline_s": DEADLINE_S,
        "round_deadline_s": DEADLINE_S,
        "sites": sites,
    }
    return RunFacts(**(settings | facts))  # type: ignore[arg-type]


AGREED = SiteFacts("north", enrolled=True, offered=True, consent=True)
IN_ROUND = replace(AGREED, takes_part=True, sent=True)
ANSWERED = replace(IN_ROUND, answered=True, scored=True)


def test_who_is_enrolled_gets_the_offer() -> None:
    assert decide(run(SiteFacts("north", enrolled=True), SiteFacts("south"))) == [SealOffer("north")]


def test_the_run_starts_when_all_have_answered() -> None:
    silent = replace(AGREED, name="south", consent=None)
    assert decide(run(AGREED, silent)) == []
    assert decide(run(AGREED, replace(silent, consent=False))) == [OpenRound(1, ("north",))]
    assert decide(run(AGREED, silent, waited_s=DEADLINE_S)) == [OpenRound(1, ("north",))]
    assert isinstance(decide(run(replace(AGREED, consent=False)))[0], GiveUp)


def test_a_round_closes_when_all_answered_or_at_its_deadline_with_a_quorum() -> None:
    slow = replace(IN_ROUND, name="south")
    assert decide(run(replace(IN_ROUND, sent=False), round_no=1)) == [SealRound("north", 1)]
    assert decide(run(replace(ANSWERED, scored=False), slow, round_no=1)) == [Score("north", 1)]
    assert decide(run(ANSWERED, slow, round_no=1)) == []
    assert decide(run(ANSWERED, slow, round_no=1, waited_s=DEADLINE_S)) == [CloseRound(1)]
    assert decide(run(ANSWERED, slow, round_no=1, waited_s=DEADLINE_S, quorum=2)) == []
    assert decide(run(ANSWERED, slow, round_no=1, stop_requested=True)) == [CloseRound(1)]


def test_a_closed_round_is_aggregated_then_told_then_followed_by_the_next() -> None:
    assert decide(run(ANSWERED, round_no=1, closed=True)) == [Aggregate(1)]
    assert decide(run(ANSWERED, round_no=1, closed=True, aggregated=True)) == [SealVerdict("north", 1)]
    told = replace(ANSWERED, told=True)
    assert decide(run(told, round_no=1, closed=True, aggregated=True)) == [OpenRound(2, ("north",))]
    assert decide(run(told, round_no=1, closed=True, aggregated=True, stop_requested=True)) == [ChooseFinal()]


def test_the_closing_round_is_not_aggregated_and_ends_the_run() -> None:
    assert decide(run(ANSWERED, round_no=3, closed=True)) == [SealVerdict("north", 3)]
    assert decide(run(replace(ANSWERED, told=True), round_no=3, closed=True)) == [ChooseFinal()]
    declined = replace(AGREED, name="south", consent=False)
    assert decide(run(AGREED, declined, final_chosen=True)) == [SealFinal("north")]
    assert decide(run(replace(AGREED, finished=True), final_chosen=True)) == []


# --- a whole run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Habit:
    """How one site behaves: when it enrols, what it says, in which rounds it answers."""

    enrols: bool
    consent: bool | None
    answers: frozenset[int]


@dataclass
class World:
    """Applies actions to the facts as the daemon and the sites would, and checks the rules on the way."""

    facts: RunFacts
    habits: dict[str, Habit]
    log: list[Action] = field(default_factory=list)
    ended: bool = False

    def change(self, site: str, **changes: bool | None) -> None:
        sites = tuple(replace(one, **changes) if one.name == site else one for one in self.facts.sites)  # type: ignore[arg-type]
        self.facts = replace(self.facts, sites=sites)

    def site(self, name: str) -> SiteFacts:
        return next(site for site in self.facts.sites if site.name == name)

    def apply(self, action: Action) -> None:
        facts = self.facts
        self.log.append(action)
        match action:
            case SealOffer(site):
                self.change(site, offered=True)
            case OpenRound(round_no, participants):
                assert round_no == facts.round_no + 1 <= facts.closing_round
                assert facts.round_no == 0 or facts.closed
                assert len(participants) >= 1
                self.facts = replace(facts, round_no=round_no, closed=False, aggregated=False, waited_s=0.0)
                for site in facts.sites:
                    part = site.name in participants
                    self.change(site.name, takes_part=part, sent=False, answered=False, scored=False, told=False)
            case SealRound(site, round_no):
                assert not facts.closed and round_no == facts.round_no
                self.change(site, sent=True)
            case Score(site, _):
                assert self.site(site).answered
                self.change(site, scored=True)
            case CloseRound(round_no):
                taking_part = [site for site in facts.sites if site.takes_part]
                answered = [site for site in taking_part if site.answered]
                assert all(site.scored for site in answered)
                assert len(answered) == len(taking_part) or len(answered) >= facts.quorum or facts.stop_requested
                self.facts = replace(facts, closed=True)
            case Aggregate(round_no):
                assert facts.closed and round_no <= facts.rounds
                self.facts = replace(facts, aggregated=True)
            case SealVerdict(site, _):
                assert facts.closed and self.site(site).takes_part and not self.site(site).told
                self.change(site, told=True)
            case ChooseFinal():
                assert facts.stop_requested or facts.round_no == facts.closing_round
                self.facts = replace(facts, final_chosen=True)
            case SealFinal(site):
                assert self.site(site).consent
                self.change(site, finished=True)
            case GiveUp():
                self.ended = True

    def sites_act(self) -> None:
        """What the sites do while the aggregator waits."""
        for name, habit in self.habits.items():
            site = self.site(name)
            if habit.enrols:
                self.change(name, enrolled=True)
            if site.offered and site.consent is None:
                self.change(name, consent=habit.consent)
            if site.sent and not self.facts.closed and self.facts.round_no in habit.answers:
                self.change(name, answered=True)


habits = st.builds(
    Habit,
    enrols=st.booleans(),
    consent=st.sampled_from([True, True, True, False, None]),
    answers=st.frozensets(st.integers(1, 5), max_size=5),
)


@settings(max_examples=300, deadline=None)
@given(
    names=st.dictionaries(st.sampled_from(["north", "south", "east", "west"]), habits, min_size=1),
    rounds=st.integers(1, 3),
    quorum=st.integers(1, 2),
    stop_at=st.none() | st.integers(0, 40),
)
def test_every_federation_keeps_the_rules(
    names: dict[str, Habit], rounds: int, quorum: int, stop_at: int | None
) -> None:
    """Rounds close in order, with a quorum or a stop; verdicts come after; nobody waits for ever who has a quorum."""
    facts = run(*(SiteFacts(name) for name in names), rounds=rounds, quorum=min(quorum, len(names)))
    world = World(facts, names)
    for step in range(400):
        if stop_at is not None and step >= stop_at:
            world.facts = replace(world.facts, stop_requested=True)
        actions = decide(world.facts)
        assert actions == decide(world.facts)
        if world.ended or (world.facts.final_chosen and not actions):
            break
        if actions:
            for action in actions:
                world.apply(action)
        else:
            world.sites_act()
            world.facts = replace(world.facts, waited_s=world.facts.waited_s + DEADLINE_S / 4)
    told = [(action.site, action.round_no) for action in world.log if isinstance(action, SealVerdict)]
    sent = [(action.site, action.round_no) for action in world.log if isinstance(action, SealRound)]
    assert len(set(told)) == len(told)
    assert set(told) <= set(sent) | {(site, world.facts.round_no) for site in names}
    willing = [name for name, habit in names.items() if habit.enrols and habit.consent]
    closing = facts.closing_round
    always = [name for name in willing if names[name].answers >= set(range(1, closing + 1))]
    if stop_at is not None or len(always) >= facts.quorum:
        assert world.ended or (world.facts.final_chosen and not decide(world.facts)), world.facts
