"""What the aggregator does next: facts in, a list of small actions out. Pure; it opens nothing.

A run passes through these stages, each left only forwards (protocol 6.4 and 6.5):

    consent   every site that is enrolled gets the offer; the run starts when all have answered, or at the
              consent deadline, with a quorum of yes either way
    round n   open → every participant's folder looked into → sent → answers scored → closed → aggregated →
              verdicts told (closes when all answered, or at its deadline with a quorum of answers)
    end       after the closing round (rounds + 1, which only validates the last aggregate), when the PI stops the
              run, when it gains nothing more by its ``stop_after``, or when fewer sites than the quorum are left: the
              best aggregate is chosen and sent to every site that agreed. Where too few can agree to start, the run is
              aborted. Whoever was offered the run, has not left it and gets no final model is told of the abort

A site is available from its yes until it withdraws; only then is anything asked of it or awaited from it. The run's
seed puts the available sites in an order, and a round asks the first ``sites_per_round`` of them; the closing round
asks all. Where a quorum has not answered at the deadline, or no longer can, the next in that order are asked too. With
nobody left to ask, a round that can have no quorum any more closes at its deadline without one.

A round is sent to a site only after a look into its folder that began after the round was opened: a withdrawal that
lies there is read first. A folder that cannot be looked into is waited for until the round's deadline, no longer.

A method may want the sites in turn: then a round asks one, in the order of their names. One that is late in its turn is
not waited for any longer once the next, asked in its place, has answered.

While the PI has the run paused, no site is asked into a round and no time passes; what was asked for is still taken and
told. So it is from the moment when the PI asks for a stop until each folder was looked into once more.

Runs that wait for their turn are offered meanwhile (``OfferEarly``). Their consents are taken, and nothing more: the
first round of a run is opened once the run before has ended.

Doing an action twice is harmless; after a crash the facts are read again and the same action comes out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shared.learning.schedules import order_of_asking
from shared.plurals import pluralize


@dataclass(frozen=True)
class SiteFacts:
    """One site of the run; the last six speak of the newest round.

    ``ended``: its final model or the abort is signed. ``looked``: its folder was looked into since it was asked to take
    part, and while nothing was paused.
    """

    name: str
    enrolled: bool = False
    offered: bool = False
    consent: bool | None = None
    consent_refused: bool = False
    withdrawn: bool = False
    ended: bool = False
    takes_part: bool = False
    looked: bool = False
    sent: bool = False
    answered: bool = False
    scored: bool = False
    has_verdict: bool = False

    @property
    def available(self) -> bool:
        """Whether it may be asked to take part in a round."""
        return bool(self.consent) and not self.withdrawn

    @property
    def may_be_sent_round(self) -> bool:
        """Whether the newest round may be signed for it now."""
        return self.takes_part and self.available and self.looked and not self.sent


@dataclass(frozen=True)
class RunFacts:
    """One run. ``round_no`` is the newest opened round, 0 before the first; times in seconds.

    ``sites_per_round`` None: a round asks every available site. ``in_turn``: it asks one, each in its turn.
    ``stop_requested``: by the PI, and each folder was looked into since; ``paused``: also from the request until then.
    ``gains_nothing``: why the run's own ``stop_after`` ends it after this round, once it is closed; empty: it does not.
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
    gains_nothing: str = ""
    final_chosen: bool = False
    aborted: bool = False

    @property
    def closing_round(self) -> int:
        """The round after the last training round: it validates the last aggregate and trains nothing."""
        return self.rounds + 1

    @property
    def overdue(self) -> bool:
        """Whether the deadline of the newest round has passed."""
        return self.waited_s >= self.round_deadline_s

    @property
    def available(self) -> tuple[str, ...]:
        """The sites that may be asked to take part in a round."""
        return tuple(site.name for site in self.sites if site.available)

    @property
    def undecided(self) -> int:
        """How many sites may still answer the offer."""
        return sum(site.consent is None and not (site.consent_refused or site.withdrawn) for site in self.sites)


@dataclass(frozen=True)
class _OfSite:
    """Something to do for a site."""

    site: str


@dataclass(frozen=True)
class _OfSiteInRound:
    """Something to do for a participant of a round."""

    site: str
    round_no: int


@dataclass(frozen=True)
class _OfRound:
    """Something to do about a round as a whole."""

    round_no: int


@dataclass(frozen=True)
class _Asking(_OfRound):
    """Whom to ask, and who of all sites was available then."""

    participants: tuple[str, ...]
    available: tuple[str, ...]


class SignOffer(_OfSite):
    """Ask a site to agree to the run."""


@dataclass(frozen=True)
class OfferEarly(_OfSite):
    """Ask a site to agree to a run that waits for its turn."""

    run: str


class OpenRound(_Asking):
    """Fix which of the available sites take part in a new round."""


class AskMore(_Asking):
    """Have further sites take part in the open round, whose deadline begins anew."""


class SignRound(_OfSiteInRound):
    """Give a participant the round's configuration and the global model."""


class Score(_OfSiteInRound):
    """Check and score a participant's model on the held-out set."""


class CloseRound(_OfRound):
    """Fix every participant's verdict; who has not answered is late, or has withdrawn."""


class Aggregate(_OfRound):
    """Combine the accepted models into the next global model."""


class SignVerdict(_OfSiteInRound):
    """Tell a participant what became of its answer."""


@dataclass(frozen=True)
class ChooseFinal:
    """Choose the best aggregate by the sites' own validation; ``reason``: why before the last round, if so."""

    reason: str = ""


class SignFinal(_OfSite):
    """Give a site the chosen model and close the run in its folder."""


@dataclass(frozen=True)
class Abort:
    """End a run that can never start."""

    reason: str


class SignAbort(_OfSite):
    """Tell a site that the run is over, and that no final model comes."""


Sign = SignOffer | OfferEarly | SignRound | SignVerdict | SignFinal | SignAbort
Action = OpenRound | AskMore | Score | CloseRound | Aggregate | ChooseFinal | Abort | Sign


def decide(run: RunFacts) -> list[Action]:
    """Return what can be done now; an empty list means wait (or, once the run is over, that all is done)."""
    # 1. A run that is over is ended in every folder that has its offer (protocol 6.1).
    if run.final_chosen or run.aborted:
        return [end for site in run.sites if (end := due_end(site, final_chosen=run.final_chosen)) is not None]
    # 2. One that too few can agree to any more never starts, and nobody else is asked (protocol 6.4).
    if run.round_no == 0 and not run.stop_requested and (reason := _why_never(run)):
        return [Abort(reason)]
    # 3. Every enrolled site is asked, also while rounds go on: who consents late is available from then on
    #    (protocol 6.1).
    offers: list[Action] = [
        SignOffer(site.name) for site in run.sites if site.enrolled and not site.offered and not run.stop_requested
    ]
    # 4. Before the first round the consents are awaited; then a round is collected, and settled once it has closed
    #    (protocol 6.4).
    if run.round_no == 0:
        return offers + _start(run)
    return offers + (_settle(run) if run.closed else _collect(run))


def due_end(site: SiteFacts, *, final_chosen: bool) -> SignFinal | SignAbort | None:
    """Return the message that tells a site that the run is over, or None if the site knows it or was never asked."""
    if not site.offered or site.ended or site.withdrawn or site.consent is False:
        return None
    # A site that has not answered the offer gets no final model: there the run is aborted (protocol 6.1).
    return SignFinal(site.name) if final_chosen and site.consent else SignAbort(site.name)


def _why_never(run: RunFacts) -> str:
    """Return why a run that has not begun never can: a quorum has not agreed and cannot any more; empty if it can."""
    left, undecided = len(run.available), run.undecided
    if left + undecided >= run.quorum:
        return ""
    still = f", {undecided} more could" if undecided else ""
    return f"only {left} of {pluralize(len(run.sites), 'site')} agreed{still}, the quorum is {run.quorum}"


def _start(run: RunFacts) -> list[Action]:
    # Stopped by the PI: what the run began with is then the only model to choose.
    if run.stop_requested:
        return [ChooseFinal("the PI stopped the run before its first round")]
    has_quorum, is_time = len(run.available) >= run.quorum, run.waited_s >= run.consent_deadline_s
    if has_quorum and not run.paused and (not run.undecided or is_time):
        return [_open(run, 1)]
    # Otherwise the run waits, also after the deadline.
    return []


def _open(run: RunFacts, round_no: int) -> OpenRound:
    # The closing round asks every site, so that the last aggregate is scored by all (protocol 6.9).
    if round_no == run.closing_round:
        count = len(run.sites)
    else:
        count = 1 if run.in_turn else run.sites_per_round or len(run.sites)
    return OpenRound(round_no, _first(run, round_no, run.available, count), run.available)


def _first(run: RunFacts, round_no: int, sites: Collection[str], count: int) -> tuple[str, ...]:
    """Return the first ``count`` of some available sites in the round's order of asking."""
    if run.in_turn:
        turn = (round_no - 1) % len(run.available)
        order = [site for site in run.available[turn:] + run.available[:turn] if site in sites]
    else:
        order = order_of_asking(run.seed, round_no, sites)
    return tuple(sorted(order[:count]))


def _collect(run: RunFacts) -> list[Action]:
    # 1. Who has answered, who still can, and who could be asked besides.
    participants = [site for site in run.sites if site.takes_part]
    answered = [site for site in participants if site.answered]
    owing = [site for site in participants if site.available and not site.answered]
    spare = [site.name for site in run.sites if site.available and not site.takes_part]
    # 2. How many answers a quorum still lacks if all who owe one give it; after the deadline they no longer count. So
    #    many further sites are asked (protocol 6.9).
    to_come = 0 if run.overdue else len(owing)
    missing = run.quorum - len(answered) - to_come
    asks_more = missing > 0 and bool(spare)
    to_score: list[Action] = [Score(site.name, run.round_no) for site in answered if not site.scored]
    # 3. The round closes once all that came is scored (protocol 6.4, step 6). Nobody is sent a round that closes.
    if run.stop_requested or (not asks_more and _may_close(run, len(answered), len(owing))):
        return to_score or [CloseRound(run.round_no)]
    # 4. A paused run scores what came, and asks nobody for anything.
    if run.paused:
        return to_score
    # 5. Whoever is due the round gets it, and what came is scored (protocol 6.4, steps 2 and 4) ...
    to_send: list[Action] = [SignRound(site.name, run.round_no) for site in run.sites if site.may_be_sent_round]
    if to_send or to_score:
        return to_send + to_score
    # 6. ... before further sites are asked (protocol 6.4, step 5).
    if asks_more:
        return [AskMore(run.round_no, _first(run, run.round_no, spare, missing), run.available)]
    return []


def _may_close(run: RunFacts, answered: int, owing: int) -> bool:
    """Return whether the open round has what it waits for, or will never have it."""
    # All have answered or withdrawn.
    if not owing:
        return True
    # A quorum has: the others have until the deadline, but for a method that asks in turn, which wants one answer.
    if answered >= run.quorum:
        return run.overdue or (run.in_turn and run.round_no != run.closing_round)
    # There is no quorum, and after the deadline none can come any more.
    return run.overdue and answered + owing < run.quorum


def _settle(run: RunFacts) -> list[Action]:
    # 1. The accepted models are combined (protocol 6.4, step 7); the closing round has none.
    if not run.aggregated and run.round_no <= run.rounds:
        return [Aggregate(run.round_no)]
    # 2. Each site that was sent the round is told its verdict (protocol 6.4, step 8), and only then the run goes on
    #    (step 9).
    verdicts: list[Action] = [
        SignVerdict(site.name, run.round_no)
        for site in run.sites
        if site.takes_part and site.sent and not site.has_verdict
    ]
    return verdicts or _go_on(run)


def _go_on(run: RunFacts) -> list[Action]:
    """Return what follows a round that is settled: the first that holds (protocol 6.5)."""
    if run.round_no == run.closing_round:
        return [ChooseFinal()]
    if run.stop_requested:
        return [ChooseFinal(f"the PI stopped the run after round {run.round_no}")]
    if run.gains_nothing:
        return [ChooseFinal(run.gains_nothing)]
    if run.paused:
        return []
    if (left := len(run.available)) < run.quorum:
        of = pluralize(len(run.sites), "site")
        why = f"only {left} of {of} were left after round {run.round_no}, the quorum is {run.quorum}"
        return [ChooseFinal(why)]
    return [_open(run, run.round_no + 1)]
