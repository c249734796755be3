"""What the aggregator does next: facts in, a list of small actions out. Pure; it opens nothing.

A run passes through these stages, each left only forwards:

    consent   every site that is enrolled gets the offer; the run starts when all have answered, or at the
              consent deadline with a quorum of yes
    round n   open → sent to every participant → answers scored → closed → aggregated → verdicts told
              (closes when all answered, or at its deadline with a quorum of answers)
    final     after the closing round (rounds + 1, which only validates the last aggregate), or when the PI
              stops the run: the best aggregate is chosen and sent to every site

Doing an action twice is harmless; after a crash the facts are read again and the same action comes out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteFacts:
    """One site of the run; the last five speak of the round that is open."""

    name: str
    enrolled: bool = False
    offered: bool = False
    consent: bool | None = None
    finished: bool = False
    takes_part: bool = False
    sent: bool = False
    answered: bool = False
    scored: bool = False
    told: bool = False


@dataclass(frozen=True)
class RunFacts:
    """One run. ``round_no`` is the newest opened round, 0 before the first; times in seconds."""

    rounds: int
    quorum: int
    consent_deadline_s: float
    round_deadline_s: float
    sites: tuple[SiteFacts, ...]
    round_no: int = 0
    closed: bool = False
    aggregated: bool = False
    waited_s: float = 0.0
    stop_requested: bool = False
    final_chosen: bool = False

    @property
    def closing_round(self) -> int:
        """The round after the last training round: it validates the last aggregate and trains nothing."""
        return self.rounds + 1


@dataclass(frozen=True)
class SealOffer:
    """Ask a site to agree to the run."""

    site: str


@dataclass(frozen=True)
class OpenRound:
    """Fix who takes part in a new round."""

    round_no: int
    participants: tuple[str, ...]


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
    """Fix every participant's verdict; who has not answered is late."""

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
    """Choose the best aggregate by the sites' own validation."""


@dataclass(frozen=True)
class SealFinal:
    """Give a site the chosen model and close the run in its folder."""

    site: str


@dataclass(frozen=True)
class GiveUp:
    """End a run that can never start."""

    reason: str


Action = (
    SealOffer | OpenRound | SealRound | Score | CloseRound | Aggregate | SealVerdict | ChooseFinal | SealFinal | GiveUp
)


def decide(run: RunFacts) -> list[Action]:
    """Return what can be done now; an empty list means wait (or, once ``final_chosen``, that all is done)."""
    if run.final_chosen:
        return [SealFinal(site.name) for site in run.sites if site.consent and not site.finished]
    offers: list[Action] = [
        SealOffer(site.name) for site in run.sites if site.enrolled and not site.offered and not run.stop_requested
    ]
    if run.round_no == 0:
        return offers + _start(run)
    return offers + (_settle(run) if run.closed else _collect(run))


def _start(run: RunFacts) -> list[Action]:
    agreed = tuple(site.name for site in run.sites if site.consent)
    all_answered = all(site.consent is not None for site in run.sites)
    if run.stop_requested:
        return [ChooseFinal()]
    if all_answered and len(agreed) < run.quorum:
        return [GiveUp(f"only {len(agreed)} of {len(run.sites)} sites agreed, the quorum is {run.quorum}")]
    if len(agreed) >= run.quorum and (all_answered or run.waited_s >= run.consent_deadline_s):
        return [OpenRound(1, agreed)]
    return []


def _collect(run: RunFacts) -> list[Action]:
    participants = [site for site in run.sites if site.takes_part]
    answered = [site for site in participants if site.answered]
    to_send: list[Action] = [SealRound(site.name, run.round_no) for site in participants if not site.sent]
    to_score: list[Action] = [Score(site.name, run.round_no) for site in answered if not site.scored]
    overdue = run.waited_s >= run.round_deadline_s and len(answered) >= run.quorum
    if to_send or to_score:
        return to_send + to_score
    if len(answered) == len(participants) or overdue or run.stop_requested:
        return [CloseRound(run.round_no)]
    return []


def _settle(run: RunFacts) -> list[Action]:
    if not run.aggregated and run.round_no <= run.rounds:
        return [Aggregate(run.round_no)]
    untold: list[Action] = [
        SealVerdict(site.name, run.round_no) for site in run.sites if site.takes_part and not site.told
    ]
    if untold:
        return untold
    if run.stop_requested or run.round_no == run.closing_round:
        return [ChooseFinal()]
    return [OpenRound(run.round_no + 1, tuple(site.name for site in run.sites if site.consent))]
