"""The aggregator's decisions, played through: a random federation always ends, and never breaks its own rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from aggregator.rounds import (
    Abort,
    Action,
    Aggregate,
    AskMore,
    ChooseFinal,
    CloseRound,
    OpenRound,
    RunFacts,
    Score,
    SignAbort,
    SignFinal,
    SignOffer,
    SignRound,
    SignVerdict,
    SiteFacts,
    decide,
)
from shared.learning.schedules import order_of_asking
from tests.at_length import held_to

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
IN_ROUND = replace(AGREED, takes_part=True, looked=True, sent=True)
ANSWERED = replace(IN_ROUND, answered=True, scored=True)


def test_who_is_enrolled_gets_the_offer() -> None:
    assert decide(run(SiteFacts("north", enrolled=True), SiteFacts("south"))) == [SignOffer("north")]


def test_the_run_starts_when_all_have_answered() -> None:
    silent = replace(AGREED, name="south", consent=None)
    assert decide(run(AGREED, silent)) == []
    opened = [OpenRound(1, ("north",), ("north",))]
    assert decide(run(AGREED, replace(silent, consent=False))) == opened
    assert decide(run(AGREED, silent, waited_s=DEADLINE_S)) == opened
    assert isinstance(decide(run(replace(AGREED, consent=False)))[0], Abort)


def test_a_run_that_too_few_can_agree_to_is_aborted_at_once() -> None:
    """With nobody else asked: it would keep the runs behind it waiting."""
    asked = SiteFacts("south", enrolled=True, offered=True)
    declined, newcomer = replace(asked, name="east", consent=False), SiteFacts("west", enrolled=True)
    assert decide(run(declined, asked, AGREED, quorum=2)) == []
    aborted = decide(run(declined, replace(declined, name="west"), asked, quorum=2))
    assert aborted == [Abort("only 0 of 3 sites agreed, 1 more could, the quorum is 2")]
    assert decide(run(declined, AGREED, newcomer, quorum=3)) == [
        Abort("only 1 of 3 sites agreed, 1 more could, the quorum is 3")
    ]
    left = replace(AGREED, withdrawn=True)
    assert decide(run(declined, left, asked, quorum=2)) == [
        Abort("only 0 of 3 sites agreed, 1 more could, the quorum is 2")
    ]
    left_unasked = replace(asked, withdrawn=True)  # with neither a yes nor a no
    assert decide(run(declined, left_unasked, AGREED, quorum=2)) == [Abort("only 1 of 3 sites agreed, the quorum is 2")]
    stopped = run(declined, replace(declined, name="west"), asked, quorum=2, stop_requested=True)
    assert decide(stopped) == [ChooseFinal("the PI stopped the run before its first round")]


def test_a_round_closes_when_all_answered_or_at_its_deadline_with_a_quorum() -> None:
    slow = replace(IN_ROUND, name="south")
    assert decide(run(replace(IN_ROUND, sent=False), round_no=1)) == [SignRound("north", 1)]
    assert decide(run(replace(ANSWERED, scored=False), slow, round_no=1)) == [Score("north", 1)]
    assert decide(run(ANSWERED, slow, round_no=1)) == []
    assert decide(run(ANSWERED, slow, round_no=1, waited_s=DEADLINE_S)) == [CloseRound(1)]
    assert decide(run(ANSWERED, slow, round_no=1, waited_s=DEADLINE_S, quorum=2)) == []
    assert decide(run(ANSWERED, slow, round_no=1, stop_requested=True)) == [CloseRound(1)]


def test_a_closed_round_is_aggregated_then_told_then_followed_by_the_next() -> None:
    assert decide(run(ANSWERED, round_no=1, closed=True)) == [Aggregate(1)]
    assert decide(run(ANSWERED, round_no=1, closed=True, aggregated=True)) == [SignVerdict("north", 1)]
    told = replace(ANSWERED, has_verdict=True)
    assert decide(run(told, round_no=1, closed=True, aggregated=True)) == [OpenRound(2, ("north",), ("north",))]
    stopped = run(told, round_no=1, closed=True, aggregated=True, stop_requested=True)
    assert decide(stopped) == [ChooseFinal("the PI stopped the run after round 1")]


def test_the_closing_round_is_not_aggregated_and_ends_the_run() -> None:
    assert decide(run(ANSWERED, round_no=3, closed=True)) == [SignVerdict("north", 3)]
    assert decide(run(replace(ANSWERED, has_verdict=True), round_no=3, closed=True)) == [ChooseFinal()]
    declined = replace(AGREED, name="south", consent=False)
    assert decide(run(AGREED, declined, final_chosen=True)) == [SignFinal("north")]
    assert decide(run(replace(AGREED, ended=True), final_chosen=True)) == []


def test_whoever_was_offered_a_run_is_told_its_end_unless_it_left() -> None:
    silent, stranger = replace(AGREED, name="south", consent=None), SiteFacts("west", enrolled=True)
    refused = replace(silent, name="east", consent_refused=True)
    told = [SignFinal("north"), SignAbort("south"), SignAbort("east")]
    assert decide(run(AGREED, silent, refused, stranger, final_chosen=True)) == told
    left = replace(AGREED, name="south", withdrawn=True)
    declined = replace(AGREED, name="east", consent=False)
    assert decide(run(AGREED, left, declined, stranger, aborted=True)) == [SignAbort("north")]
    assert decide(run(replace(AGREED, ended=True), left, declined, stranger, aborted=True)) == []


def test_an_answer_to_the_offer_that_is_refused_is_not_waited_for() -> None:
    refused = replace(AGREED, name="south", consent=None, consent_refused=True)
    assert decide(run(AGREED, refused)) == [OpenRound(1, ("north",), ("north",))]
    assert isinstance(decide(run(AGREED, refused, quorum=2))[0], Abort)


def test_a_round_is_signed_only_after_a_look_and_not_once_it_closes_or_is_paused() -> None:
    asked = replace(IN_ROUND, looked=False, sent=False)
    assert decide(run(asked, round_no=1)) == []
    looked = replace(asked, looked=True)
    assert decide(run(looked, round_no=1)) == [SignRound("north", 1)]
    assert decide(run(replace(looked, withdrawn=True), round_no=1)) == [CloseRound(1)]
    assert decide(run(looked, round_no=1, paused=True)) == []
    assert decide(run(looked, round_no=1, stop_requested=True)) == [CloseRound(1)]
    # A folder that cannot be looked into is waited for until the deadline, and then left out.
    heard = replace(ANSWERED, name="south")
    assert decide(run(asked, heard, round_no=1)) == []
    assert decide(run(asked, heard, round_no=1, waited_s=DEADLINE_S)) == [CloseRound(1)]
    assert decide(run(looked, heard, round_no=1, waited_s=DEADLINE_S)) == [CloseRound(1)]


def sites(*names: str, of: SiteFacts = AGREED) -> tuple[SiteFacts, ...]:
    return tuple(replace(of, name=name) for name in names)


def test_a_round_asks_as_many_sites_as_the_run_says_and_the_closing_round_all() -> None:
    names = ("east", "north", "south", "west")
    told = sites(*names, of=replace(ANSWERED, takes_part=False))
    chosen = []
    for round_no in range(1, 9):
        settled = run(*told, rounds=8, sites_per_round=2, round_no=round_no - 1, closed=True, aggregated=True)
        (action,) = decide(settled if round_no > 1 else run(*told, sites_per_round=2))
        assert isinstance(action, OpenRound) and action.available == names
        assert action.participants == tuple(sorted(order_of_asking(0, round_no, names)[:2]))
        chosen.append(action.participants)
    assert len(set(chosen)) > 1  # not always the same
    assert set(names) == {name for pair in chosen for name in pair}
    last = run(*told, rounds=8, sites_per_round=2, round_no=8, closed=True, aggregated=True)
    assert decide(last) == [OpenRound(9, names, names)]


def test_sites_are_asked_in_turn_and_the_closing_round_asks_all() -> None:
    names = ("east", "north", "west")
    told = sites(*names, of=replace(ANSWERED, has_verdict=True))
    turns = []
    for round_no in range(1, 6):
        settled = run(*told, rounds=5, in_turn=True, round_no=round_no - 1, closed=True, aggregated=True)
        turns += decide(settled if round_no > 1 else run(*told, in_turn=True))
    order = ("east", "north", "west", "east", "north")
    assert turns == [OpenRound(number, (site,), names) for number, site in enumerate(order, 1)]
    last = run(*told, rounds=5, in_turn=True, round_no=5, closed=True, aggregated=True)
    assert decide(last) == [OpenRound(6, names, names)]
    # All are heard in the closing round; one answer ends any other.
    heard = replace(ANSWERED, name="east")
    waiting = sites("north", "west", of=IN_ROUND)
    assert decide(run(heard, *waiting, rounds=5, in_turn=True, round_no=6)) == []
    assert decide(run(heard, *waiting, rounds=5, in_turn=True, round_no=6, waited_s=DEADLINE_S)) == [CloseRound(6)]


def test_who_is_late_in_its_turn_is_followed_by_the_next() -> None:
    """Nobody's turn ends without an answer to it, and the late one may still give it."""
    names = ("east", "north", "west")
    east, north, west = sites(*names)
    north = replace(north, takes_part=True, sent=True)
    facts = run(east, north, west, in_turn=True, rounds=9, round_no=2)
    assert decide(facts) == []
    overdue = replace(facts, waited_s=DEADLINE_S)
    assert decide(overdue) == [AskMore(2, ("west",), names)]
    assert decide(replace(overdue, paused=True)) == []
    west = replace(west, takes_part=True, sent=True)
    asked = replace(facts, sites=(east, north, west))
    assert decide(asked) == []
    assert decide(replace(asked, waited_s=DEADLINE_S)) == [AskMore(2, ("east",), names)]
    everybody = replace(facts, sites=sites(*names, of=IN_ROUND), waited_s=DEADLINE_S)
    assert decide(everybody) == []
    for answered in (
        (east, replace(north, answered=True, scored=True), west),
        (east, north, replace(west, answered=True, scored=True)),
    ):
        assert decide(replace(asked, sites=answered)) == [CloseRound(2)]
    left = replace(facts, sites=(east, replace(north, withdrawn=True), sites("west")[0]))
    assert decide(left) == [AskMore(2, ("west",), ("east", "west"))]


def test_where_no_quorum_answers_the_next_sites_are_asked() -> None:
    """At the deadline as many as are missing; at once if a site's withdrawal leaves no other hope."""
    asked = sites("north", "south", of=IN_ROUND)
    spare = sites("east", "west")
    order = order_of_asking(0, 1, ("east", "west"))
    everybody = ("north", "south", "east", "west")
    facts = run(*asked, *spare, round_no=1, quorum=2, sites_per_round=2)
    assert decide(facts) == []
    both = AskMore(1, ("east", "west"), everybody)
    assert decide(replace(facts, waited_s=DEADLINE_S)) == [both]
    one_answer = replace(facts, sites=(replace(asked[0], answered=True, scored=True), asked[1], *spare))
    one = AskMore(1, (order[0],), everybody)
    assert decide(one_answer) == []
    assert decide(replace(one_answer, waited_s=DEADLINE_S)) == [one]
    assert decide(replace(one_answer, waited_s=DEADLINE_S, paused=True)) == []
    left = replace(facts, sites=(replace(asked[0], withdrawn=True), asked[1], *spare))
    assert decide(left) == [AskMore(1, (order[0],), ("south", "east", "west"))]


def test_nobody_waits_for_a_site_that_withdrew() -> None:
    gone = replace(IN_ROUND, name="south", withdrawn=True)
    assert decide(run(ANSWERED, gone, round_no=1)) == [CloseRound(1)]
    assert decide(run(ANSWERED, replace(gone, sent=False), round_no=1)) == [CloseRound(1)]
    assert decide(run(replace(AGREED, withdrawn=True), replace(AGREED, name="south"))) == [
        OpenRound(1, ("south",), ("south",))
    ]
    # What it answered before it left is scored and counts.
    assert decide(run(ANSWERED, replace(gone, answered=True), round_no=1)) == [Score("south", 1)]
    # It is told what became of the round it was sent, and of no other; it gets no final model.
    closed = run(replace(ANSWERED, has_verdict=True), gone, round_no=1, closed=True, aggregated=True)
    assert decide(closed) == [SignVerdict("south", 1)]
    assert decide(replace(closed, sites=(replace(ANSWERED, has_verdict=True), replace(gone, sent=False)))) == [
        OpenRound(2, ("north",), ("north",))
    ]
    assert decide(run(AGREED, gone, final_chosen=True)) == [SignFinal("north")]


def test_too_few_sites_end_the_run_with_the_best_so_far() -> None:
    gone = replace(ANSWERED, name="south", withdrawn=True, has_verdict=True)
    facts = run(replace(ANSWERED, has_verdict=True), gone, round_no=1, closed=True, aggregated=True, quorum=2)
    why = "only 1 of 2 sites were left after round 1, the quorum is 2"
    assert decide(facts) == [ChooseFinal(why)]
    assert decide(replace(facts, quorum=1)) == [OpenRound(2, ("north",), ("north",))]
    # Before the first round there is no model to end with.
    assert isinstance(decide(run(AGREED, replace(AGREED, name="south", withdrawn=True), quorum=2))[0], Abort)
    # A round that can have no quorum any more waits for its deadline, not for ever.
    hopeless = run(IN_ROUND, replace(IN_ROUND, name="south", withdrawn=True), round_no=1, quorum=2)
    assert decide(hopeless) == []
    assert decide(replace(hopeless, waited_s=DEADLINE_S)) == [CloseRound(1)]


def test_a_paused_run_takes_what_is_open_and_asks_for_nothing_new() -> None:
    told = replace(ANSWERED, has_verdict=True)
    assert decide(run(AGREED, paused=True)) == []
    assert decide(run(replace(ANSWERED, scored=False), round_no=1, paused=True)) == [Score("north", 1)]
    assert decide(run(ANSWERED, round_no=1, paused=True)) == [CloseRound(1)]
    assert decide(run(ANSWERED, round_no=1, paused=True, closed=True)) == [Aggregate(1)]
    assert decide(run(ANSWERED, round_no=1, paused=True, closed=True, aggregated=True)) == [SignVerdict("north", 1)]
    settled = run(told, round_no=1, paused=True, closed=True, aggregated=True)
    assert decide(settled) == []
    assert isinstance(decide(replace(settled, stop_requested=True))[0], ChooseFinal)
    assert decide(run(told, round_no=3, paused=True, closed=True)) == [ChooseFinal()]


def test_a_site_that_agrees_late_is_asked_from_the_next_round_on() -> None:
    late = replace(AGREED, name="south", consent=None)
    open_round = run(replace(IN_ROUND), replace(late, offered=False), round_no=1)
    assert decide(open_round) == [SignOffer("south")]
    settled = run(replace(ANSWERED, has_verdict=True), late, round_no=1, closed=True, aggregated=True)
    assert decide(settled) == [OpenRound(2, ("north",), ("north",))]
    agreed = replace(settled, sites=(settled.sites[0], replace(late, consent=True)))
    assert decide(agreed) == [OpenRound(2, ("north", "south"), ("north", "south"))]
    declined = replace(settled, sites=(settled.sites[0], replace(late, consent=False)))
    assert decide(declined) == [OpenRound(2, ("north",), ("north",))]


# --- a whole run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Habit:
    """How one site behaves: when it enrols, what it says, in which rounds it answers, after which step it withdraws."""

    enrols_at: int | None
    consent: bool | None
    answers: frozenset[int]
    withdraws_at: int | None


@dataclass
class World:
    """Applies actions to the facts as the daemon and the sites would, and checks the rules on the way."""

    facts: RunFacts
    habits: dict[str, Habit]
    log: list[Action] = field(default_factory=list)

    def change(self, site: str, **changes: bool | None) -> None:
        sites = tuple(replace(one, **changes) if one.name == site else one for one in self.facts.sites)  # type: ignore[arg-type]
        self.facts = replace(self.facts, sites=sites)

    def site(self, name: str) -> SiteFacts:
        return next(site for site in self.facts.sites if site.name == name)

    def apply(self, action: Action) -> None:
        facts = self.facts
        self.log.append(action)
        match action:
            case SignOffer(site):
                self.change(site, offered=True)
            case OpenRound():
                self.open(action)
            case AskMore():
                self.ask_more(action)
            case SignRound(site, round_no):
                assert not facts.closed and round_no == facts.round_no
                assert self.site(site).available and self.site(site).looked and not facts.paused
                self.change(site, sent=True)
            case Score(site, _):
                assert self.site(site).answered
                self.change(site, scored=True)
            case CloseRound():
                self.check_closing()
                self.facts = replace(facts, closed=True)
            case Aggregate(round_no):
                assert facts.closed and round_no <= facts.rounds
                self.facts = replace(facts, aggregated=True)
            case SignVerdict(site, _):
                assert facts.closed and self.site(site).sent and not self.site(site).has_verdict
                self.change(site, has_verdict=True)
            case ChooseFinal(reason):
                too_few = len(facts.available) < facts.quorum and bool(reason)
                assert facts.stop_requested or facts.round_no == facts.closing_round or too_few
                assert facts.round_no == 0 or facts.closed
                self.facts = replace(facts, final_chosen=True)
            case SignFinal(site):
                assert self.site(site).available
                self.change(site, ended=True)
            case Abort():
                assert facts.round_no == 0
                self.facts = replace(facts, aborted=True)
            case SignAbort(site):
                assert facts.aborted or (facts.final_chosen and self.site(site).consent is None)
                self.change(site, ended=True)

    def ask_more(self, action: AskMore) -> None:
        facts = self.facts
        assert action.round_no == facts.round_no and not facts.closed
        can_answer = [site for site in facts.sites if site.takes_part and (site.answered or not site.withdrawn)]
        assert facts.waited_s >= facts.round_deadline_s or len(can_answer) < facts.quorum
        self.check_asking(action.participants, action.available)
        assert not any(self.site(name).takes_part for name in action.participants)
        self.facts = replace(facts, waited_s=0.0)
        for name in action.participants:
            self.change(name, takes_part=True)

    def open(self, action: OpenRound) -> None:
        facts = self.facts
        assert action.round_no == facts.round_no + 1 <= facts.closing_round
        assert facts.round_no == 0 or facts.closed
        self.check_asking(action.participants, action.available)
        most = 1 if facts.in_turn else facts.sites_per_round or len(facts.sites)
        expected = len(action.available) if action.round_no == facts.closing_round else min(most, len(action.available))
        assert len(action.participants) == expected
        assert len(action.available) >= facts.quorum
        self.facts = replace(facts, round_no=action.round_no, closed=False, aggregated=False, waited_s=0.0)
        for site in facts.sites:
            part = site.name in action.participants
            self.change(
                site.name, takes_part=part, looked=False, sent=False, answered=False, scored=False, has_verdict=False
            )

    def check_asking(self, participants: tuple[str, ...], available: tuple[str, ...]) -> None:
        """Whoever is newly asked agreed and did not withdraw; nobody is while the run is paused."""
        assert not self.facts.paused
        assert participants and set(participants) <= set(available)
        assert set(available) == {site.name for site in self.facts.sites if site.consent and not site.withdrawn}

    def check_closing(self) -> None:
        """Nobody's answer is lost, and nobody who may still answer is cut off before the deadline."""
        facts = self.facts
        taking_part = [site for site in facts.sites if site.takes_part]
        answered = [site for site in taking_part if site.answered]
        owing = [site for site in taking_part if not site.answered and not site.withdrawn]
        assert all(site.scored for site in answered)
        has_had_its_turn = facts.in_turn and answered and facts.round_no != facts.closing_round
        if not facts.stop_requested and owing and not has_had_its_turn:
            assert facts.waited_s >= facts.round_deadline_s
            assert len(answered) >= facts.quorum or len(answered) + len(owing) < facts.quorum

    @property
    def is_over(self) -> bool:
        return (self.facts.final_chosen or self.facts.aborted) and not decide(self.facts)

    def sites_act(self, step: int) -> None:
        """What the sites do while the aggregator waits."""
        for name, habit in self.habits.items():
            site = self.site(name)
            if habit.enrols_at is not None and step >= habit.enrols_at:
                self.change(name, enrolled=True)
            if site.offered and site.consent is None:
                self.change(name, consent=habit.consent)
            if site.takes_part and not self.facts.paused:
                self.change(name, looked=True)
            if site.consent and habit.withdraws_at is not None and step >= habit.withdraws_at:
                self.change(name, withdrawn=True)
            elif site.sent and not self.facts.closed and self.facts.round_no in habit.answers:
                self.change(name, answered=True)

    def live(self, steps: range, paused: range = range(0), stop_at: int | None = None, looks_for: int = 0) -> None:
        """Let the aggregator decide, and the sites and the clock go on where it waits, until the run is over.

        Args:
            stop_at: the step at which a stop is asked for; ``looks_for`` steps later each folder was looked into.
        """
        for step in steps:
            asked = stop_at is not None and step >= stop_at
            stops = stop_at is not None and step >= stop_at + looks_for
            self.facts = replace(self.facts, paused=asked or step in paused, stop_requested=stops)
            actions = decide(self.facts)
            assert actions == decide(self.facts)
            if self.is_over:
                return
            for action in actions:
                self.apply(action)
            if not actions:
                self.sites_act(step)
                passed_s = 0.0 if self.facts.paused else DEADLINE_S / 4
                self.facts = replace(self.facts, waited_s=self.facts.waited_s + passed_s)


habits = st.builds(
    Habit,
    enrols_at=st.sampled_from([0, 0, 0, 20, 60, None]),
    consent=st.sampled_from([True, True, True, False, None]),
    answers=st.frozensets(st.integers(1, 5), max_size=5),
    withdraws_at=st.none() | st.integers(0, 60),
)
federations = st.dictionaries(st.sampled_from(["north", "south", "east", "west"]), habits, min_size=1)
runs = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 3),
        "quorum": st.integers(1, 2),
        "sites_per_round": st.none() | st.integers(1, 4),
        "in_turn": st.booleans(),
        "seed": st.integers(0, 5),
    }
)
pauses = st.builds(range, st.integers(0, 40), st.integers(0, 80))


def begun(names: dict[str, Habit], wanted: dict[str, Any]) -> World:
    quorum = 1 if wanted["in_turn"] else min(wanted["quorum"], len(names))
    most = wanted["sites_per_round"] and min(max(wanted["sites_per_round"], quorum), len(names))
    facts = run(*map(SiteFacts, sorted(names)), **(wanted | {"quorum": quorum, "sites_per_round": most}))
    return World(facts, names)


@held_to(
    75,
    300,
    names=federations,
    wanted=runs,
    paused=pauses,
    stop_at=st.none() | st.integers(0, 40),
    looks=st.integers(0, 5),
)
def test_every_federation_keeps_the_rules(
    names: dict[str, Habit], wanted: dict[str, Any], paused: range, stop_at: int | None, looks: int
) -> None:
    """Rounds close in order, with a quorum, a stop or no hope; who withdrew, pauses and stops have nobody asked."""
    world = begun(names, wanted)
    world.live(range(600), paused, stop_at, looks)
    facts = world.facts
    told = [(action.site, action.round_no) for action in world.log if isinstance(action, SignVerdict)]
    sent = [(action.site, action.round_no) for action in world.log if isinstance(action, SignRound)]
    assert len(set(told)) == len(told) and len(set(sent)) == len(sent)
    assert set(told) <= set(sent)
    if facts.final_chosen:
        assert set(told) == set(sent)
    if world.is_over:
        assert all(site.ended or site.withdrawn or site.consent is False for site in facts.sites if site.offered)
    faithful = [
        name
        for name, habit in names.items()
        if habit.enrols_at is not None
        and habit.consent
        and habit.withdraws_at is None
        and habit.answers >= set(range(1, facts.closing_round + 1))
    ]
    if stop_at is not None or len(faithful) >= facts.quorum:
        assert world.is_over, facts


@held_to(75, 200, names=federations, wanted=runs, paused=pauses, until=st.integers(0, 120))
def test_from_wherever_it_is_a_run_ends_once_its_sites_answer_or_leave(
    names: dict[str, Habit], wanted: dict[str, Any], paused: range, until: int
) -> None:
    """However sites behaved so far: if from now on each answers or withdraws, nothing hangs."""
    world = begun(names, wanted)
    world.live(range(until), paused)
    for name, habit in names.items():
        world.habits[name] = replace(habit, enrols_at=0, consent=habit.consent or False, answers=frozenset(range(9)))
    world.live(range(until, until + 400), paused)
    assert world.is_over, world.facts
