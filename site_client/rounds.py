"""What the site does next: facts in, one small action out. Pure; it opens nothing.

The aggregator's messages of a run come in one order only, so after each there are few places where the next can lie:

    an offer       →  abort; once we have agreed also any round, or final
    round n        →  verdict n, and nothing else whatever
    verdict n      →  any round after n, or final

Several runs may have been offered and wait; one alone is played at a time, from its first round to its end. So while we
play one, the next message is one of that run, or the offer of another. Else it may be of each run that goes on here, or
an offer.

The site first reads all there is, then acts: so after an absence it skips the rounds that closed without it. A site
that withdrew goes on reading, for the messages are chained, but answers nothing of that run. A paused site does nothing
at all. Doing an action twice is harmless; after a crash the same action comes out again.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.exchange.names import MessageRef
from shared.exchange.order import BEGUN


@dataclass(frozen=True)
class RunFacts:
    """A run that goes on here: it was offered, and may bring messages still.

    ``last``: where the aggregator's last accepted message of it lies. ``leaving``: a person here wants to withdraw, and
    can; ``withdrawn``: we have said so. ``answered``: the round that ``last`` is.
    """

    last: MessageRef
    agreed: bool | None = None
    leaving: bool = False
    withdrawn: bool = False
    answered: bool = False

    @property
    def is_left(self) -> bool:
        """Whether we have said that we take no part, or none any more."""
        return self.withdrawn or self.agreed is False

    @property
    def is_played(self) -> bool:
        """Whether its rounds have begun here, and we are in it."""
        return self.last.kind in BEGUN and not self.is_left


@dataclass(frozen=True)
class SiteFacts:
    """``runs``: those that go on here, in the order of their offers.

    ``may_train``: it is the time for it.
    ``unkept``: a run whose final model came but does not lie ready for use here yet.
    ``looked``: nothing newer was there when we last looked.
    """

    card_published: bool
    enrolled: bool
    paused: bool = False
    may_train: bool = True
    unpublished: bool = False
    runs: tuple[RunFacts, ...] = ()
    unkept: str | None = None
    looked: bool = False


@dataclass(frozen=True)
class PublishCard:
    """Put the site's card into the folder."""


@dataclass(frozen=True)
class ReadFederation:
    """See whether the aggregator has accepted the card."""


@dataclass(frozen=True)
class Publish:
    """Send what is signed."""


@dataclass(frozen=True)
class Look:
    """See whether the aggregator's next message is there.

    Args:
        later_than: rounds, or offers: any later round of their runs.
        refs: besides, these.
        offers: besides, the offer of a run that we do not know.
    """

    refs: tuple[MessageRef, ...] = ()
    later_than: tuple[MessageRef, ...] = ()
    offers: bool = False


@dataclass(frozen=True)
class AnswerOffers:
    """Decide on these offers, as far as that can be done now."""

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Withdraw:
    """Take our yes to a run back."""

    run: str


@dataclass(frozen=True)
class AnswerRound:
    """Validate, train, and sign the answer."""

    run: str
    round_no: int


@dataclass(frozen=True)
class KeepFinal:
    """Put the final model together with this site's own parts, ready for use."""

    run: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do until something new is there."""


Action = PublishCard | ReadFederation | Publish | Look | AnswerOffers | Withdraw | AnswerRound | KeepFinal | Wait


def decide(site: SiteFacts) -> Action:
    """Return the one thing to do now."""
    if site.paused:
        return Wait()
    # 1. The site joins: its card goes there, and the aggregator's answer to it is awaited (protocol 4.1).
    if not site.card_published:
        return PublishCard()
    if not site.enrolled:
        return Wait() if site.looked else ReadFederation()
    # 2. What is signed is sent in the order of its numbers (protocol 3.2), and before anything new is signed.
    if site.unpublished:
        return Publish()
    # 3. A withdrawal waits for nothing but that: the sooner it is there, the less is asked of this site (protocol 6.8).
    leaving = next((run for run in site.runs if run.leaving), None)
    if leaving is not None:
        return Withdraw(leaving.last.run)
    # 4. All that came is read before anything is answered: no round is trained that has closed (protocol 6.4).
    if not site.looked:
        return next_look(site)
    # 5. The open round is answered, in the hours for training; of a run that we left none is.
    asked = next((run for run in site.runs if run.last.kind == "round" and not (run.answered or run.is_left)), None)
    if asked is not None and site.may_train:
        return AnswerRound(asked.last.run, asked.last.round_no)
    # 6. Final models and offers come after the round, for which others wait.
    if site.unkept is not None:
        return KeepFinal(site.unkept)
    undecided = tuple(run.last.run for run in site.runs if run.last.kind == "offer" and run.agreed is None)
    return AnswerOffers(undecided) if undecided else Wait()


def next_look(site: SiteFacts) -> Look:
    """Return where the aggregator's next message can lie (protocol 6.1)."""
    # A round is followed by its verdict: until that is there, nothing else comes, not even an offer (protocol 6.2).
    in_round = next((run.last for run in site.runs if run.last.kind == "round"), None)
    if in_round is not None:
        return Look((MessageRef("verdict", in_round.run, in_round.round_no),))
    # A run whose rounds have begun is played to its end before another's begin (protocol 6.2).
    going_on = [run for run in site.runs if run.is_played] or site.runs
    # Where we agreed, any later round or the final model can come; where no round came yet, an abort can.
    agreed = [run.last for run in going_on if run.agreed]
    finals = [MessageRef("final", last.run) for last in agreed]
    aborts = [MessageRef("abort", run.last.run) for run in going_on if run.last.kind == "offer"]
    return Look((*finals, *aborts), later_than=tuple(agreed), offers=True)
