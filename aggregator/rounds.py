"""What the aggregator does next: facts in, a list of small actions out. Pure; it opens nothing.

A run passes through these stages, each left only forwards:

    consent   every site that is enrolled gets the offer; the run starts when all have answered, or at the
              consent deadline with a quorum of yes
    round n   open → sent to every participant → answers scored → closed → aggregated → verdicts told
              (closes when all answered, or at its deadline with a quorum of answers)
    final     after the closing round (rounds + 1, which only validates the last aggregate), when the PI stops the
              run, or when fewer sites than the quorum are left: the best aggregate is chosen and sent to every site

A site is available from its yes until it withdraws; only then is anything asked of it or awaited from it. The run's
seed puts the available sites in an order, and a round asks the first ``sites_per_round`` of them; the closing round
asks all. Where a quorum has not answered at the deadline, or no longer can, the next in that order are asked too. With
nobody left to ask, a round that can have no quorum any more closes at its deadline without one.

A method may want the sites in turn: then a round asks one, in the order of their names. One that is late in its turn is
not waited for any longer once the next, asked in its place, has answered.

While the PI has the run paused, nobody new is asked and no time passes; what was asked for is still taken and told. So
it is from the moment when the PI asks for a stop until each folder was looked into once more.

Doing an action twice is harmless; after a crash the facts are read again and the same action comes out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shared.counted import counted
from shared.learning.schedules import order_of_asking


@dataclass(frozen=True)
class SiteFacts:
    """One site of the run; the last five speak of the newest round."""

    name: str
    enrolled: bool = False
    offered: bool = False
    consent: bool | None = None
    withdrawn: bool = False
    finished: bool = False
    takes_part: bool = False
    sent: bool = False
    answered: bool = False
    scored: bool = False
    told: bool = False

    @property
    def available(self) -> bool:
        """Whether it may be asked to take part in a round."""
        return bool(self.consent) and not self.withdrawn


@dataclass(frozen=True)
class RunFacts:
    """One run. ``round_no`` is the newest opened round, 0 before the first; times in seconds.

    ``sites_per_round`` None: a round asks every available site. ``in_turn``: it asks one, each in its turn.
    ``stop_requested``: by the PI, and each folder was looked into since; ``paused``: also from the request until then.
    """

    rounds: int
    quorum: int
    consent_deadline_s: float
    round_deadline_s: float
    sites: tuple[SiteFacts, ...]
    seed: int = 0
    sites_per_round: int | None = None
    in_turn: bool = False
    round_no: int = 0
    closed: bool = False
    aggregated: bool = False
    waited_s: float = 0.0
    paused: bool = False
    stop_requested: bool = False
    final_chosen: bool = False

    @property
    def closing_round(self) -> int:
        """The round after the last training round: it validates the last aggregate and trains nothing."""
        return self.rounds + 1

    @property
    def available(self) -> tuple[str, ...]:
        """The sites that may be asked to take part in a round."""
        return tuple(site.name for site in self.sites if site.available)


@dataclass(frozen=True)
class SealOffer:
    """Ask a site to agree to the run."""

    site: str


@dataclass(frozen=True)
class OpenRound:
    """Fix which of the available sites take part in a new round."""

    round_no: int
    participants: tuple[str, ...]
    available: tuple[str, ...]


@dataclass(frozen=True)
class AskMore:
    """Have further sites take part in the open round, whose deadline begins anew."""

    round_no: int
    participants: tuple[str, ...]
    available: tuple[str, ...]


@dataclass(frozen=True)
class SealRound:
    """Give a participant the round's configuration and the global model."""

    site: str
    round_no: int


@dataclass(frozen=True)
class Score:
    """Check and score a participant's model on the held-out set."""

    site: str
    round_no: int


@dataclass(frozen=True)
class CloseRound:
    """Fix every participant's verdict; who has not answered is late, or has withdrawn."""

    round_no: int


@dataclass(frozen=True)
class Aggregate:
    """Combine the accepted models into the next global model."""

    round_no: int


@dataclass(frozen=True)
class SealVerdict:
    """Tell a participant what became of its answer."""

    site: str
    round_no: int


@dataclass(frozen=True)
class ChooseFinal:
    """Choose the best aggregate by the sites' own validation; ``reason``: why before the last round, if so."""

    reason: str = ""


@dataclass(frozen=True)
class SealFinal:
    """Give a site the chosen model and close the run in its folder."""

    site: str


@dataclass(frozen=True)
class GiveUp:
    """End a run that can never start."""

    reason: str


Action = (
    SealOffer
    | OpenRound
    | AskMore
    | SealRound
    | Score
    | CloseRound
    | Aggregate
    | SealVerdict
    | ChooseFinal
    | SealFinal
    | GiveUp
)


def decide(run: RunFacts) -> list[Action]:
    """Return what can be done now; an empty list means wait (or, once ``final_chosen``, that all is done)."""
    if run.final_chosen:
        return [SealFinal(site.name) for site in run.sites if site.available and not site.finished]
    offers: list[Action] = [
        SealOffer(site.name) for site in run.sites if site.enrolled and not site.offered and not run.stop_requested
    ]
    if run.round_no == 0:
        return offers + _start(run)
    return offers + (_settle(run) if run.closed else _collect(run))


def _start(run: RunFacts) -> list[Action]:
    left = len(run.available)
    all_answered = all(site.consent is not None for site in run.sites)
    if run.stop_requested:
        return [ChooseFinal("the PI stopped the run before its first round")]
    if all_answered and left < run.quorum:
        return [GiveUp(f"only {left} of {counted(len(run.sites), 'site')} agreed, the quorum is {run.quorum}")]
    if left >= run.quorum and not run.paused and (all_answered or run.waited_s >= run.consent_deadline_s):
        return [_open(run, 1)]
    return []


def _open(run: RunFacts, round_no: int) -> OpenRound:
    if round_no == run.closing_round:
        count = len(run.sites)
    else:
        count = 1 if run.in_turn else run.sites_per_round or len(run.sites)
    return OpenRound(round_no, _first(run, round_no, run.available, count), run.available)


def _first(run: RunFacts, round_no: int, sites: Collection[str], count: int) -> tuple[str, ...]:
    """The first ``count`` of some available sites in the round's order of asking."""
    if run.in_turn:
        turn = (round_no - 1) % len(run.available)
        order = [site for site in run.available[turn:] + run.available[:turn] if site in sites]
    else:
        order = order_of_asking(run.seed, round_no, sites)
    return tuple(sorted(order[:count]))


def _collect(run: RunFacts) -> list[Action]:
    participants = [site for site in run.sites if site.takes_part]
    answered = [site for site in participants if site.answered]
    owing = [site for site in participants if site.available and not site.answered]
    to_send: list[Action] = [SealRound(site.name, run.round_no) for site in owing if not site.sent]
    to_score: list[Action] = [Score(site.name, run.round_no) for site in answered if not site.scored]
    if to_send or to_score:
        return to_send + to_score
    if run.stop_requested:
        return [CloseRound(run.round_no)]
    overdue = run.waited_s >= run.round_deadline_s
    to_come = 0 if overdue else len(owing)
    missing = run.quorum - len(answered) - to_come
    spare = [site.name for site in run.sites if site.available and not site.takes_part]
    if missing > 0 and spare:
        return [] if run.paused else [AskMore(run.round_no, _first(run, run.round_no, spare, missing), run.available)]
    has_quorum = len(answered) >= run.quorum
    can_have_one = len(answered) + len(owing) >= run.quorum
    is_done = run.in_turn and has_quorum and run.round_no != run.closing_round
    if not owing or is_done or (overdue and (has_quorum or not can_have_one)):
        return [CloseRound(run.round_no)]
    return []


def _settle(run: RunFacts) -> list[Action]:
    if not run.aggregated and run.round_no <= run.rounds:
        return [Aggregate(run.round_no)]
    untold: list[Action] = [
        SealVerdict(site.name, run.round_no) for site in run.sites if site.takes_part and site.sent and not site.told
    ]
    return untold or _go_on(run)


def _go_on(run: RunFacts) -> list[Action]:
    """What follows a round that is settled."""
    if run.round_no == run.closing_round:
        return [ChooseFinal()]
    if run.stop_requested:
        return [ChooseFinal(f"the PI stopped the run after round {run.round_no}")]
    if run.paused:
        return []
    if (left := len(run.available)) < run.quorum:
        of = counted(len(run.sites), "site")
        why = f"only {left} of {of} were left after round {run.round_no}, the quorum is {run.quorum}"
        return [ChooseFinal(why)]
    return [_open(run, run.round_no + 1)]
