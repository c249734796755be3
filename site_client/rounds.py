"""What the site does next: facts in, one small action out. Pure; it opens nothing.

The aggregator's messages come in one order only, so after each there are few places where the next can lie:

    nothing, final or abort       →  an offer of a new run
    an offer                      →  abort; once we have agreed also any round, or final
    round n                       →  verdict n
    verdict n                     →  any round after n, or final
    where we declined or left     →  besides, an offer of a new run: the aggregator may know already

The site first reads all there is, then acts on the last message: so after an absence it skips the rounds that
closed without it. A site that withdrew goes on reading, for the messages are chained, but answers nothing of that run.
A paused site does nothing at all. Doing an action twice is harmless; after a crash the same action comes out again.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.exchange.names import MessageRef


@dataclass(frozen=True)
class SiteFacts:
    """``last``: where the aggregator's last accepted message lies; the next four speak of its run.

    ``may_train``: it is the time for it. ``leaving``: a person here wants to withdraw, and can; ``withdrawn``: we have
    said so.
    ``unkept``: a run whose final model came but does not lie ready for use here yet.
    ``looked``: nothing newer was there when we last looked.
    """

    card_published: bool
    enrolled: bool
    paused: bool = False
    may_train: bool = True
    unpublished: bool = False
    last: MessageRef | None = None
    agreed: bool | None = None
    leaving: bool = False
    withdrawn: bool = False
    answered: bool = False
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
        later_than: a round, or the offer: any later round of its run.
        places: besides, these.
        offers: besides, the offer of a run that we do not know.
    """

    refs: tuple[MessageRef, ...] = ()
    later_than: MessageRef | None = None
    offers: bool = False


@dataclass(frozen=True)
class AnswerOffer:
    """Decide on an offer."""

    run: str


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


Action = PublishCard | ReadFederation | Publish | Look | AnswerOffer | Withdraw | AnswerRound | KeepFinal | Wait


def decide(site: SiteFacts) -> Action:
    """Return the one thing to do now."""
    if site.paused:
        return Wait()
    if not site.card_published:
        return PublishCard()
    if not site.enrolled:
        return Wait() if site.looked else ReadFederation()
    if site.unpublished:
        return Publish()
    last = site.last
    if last is not None and site.leaving:
        return Withdraw(last.run)
    if not site.looked:
        return next_look(site)
    if last is not None and last.kind == "offer" and site.agreed is None:
        return AnswerOffer(last.run)
    if last is not None and last.kind == "round" and not site.answered and not site.withdrawn and site.may_train:
        return AnswerRound(last.run, last.round_no)
    if site.unkept is not None:
        return KeepFinal(site.unkept)
    return Wait()


def next_look(site: SiteFacts) -> Look:
    """Return where the aggregator's next message can lie."""
    last = site.last
    if last is None or last.kind in ("final", "abort"):
        return Look(offers=True)
    if last.kind == "round":
        return Look((MessageRef("verdict", last.run, last.round_no),))
    final = [MessageRef("final", last.run)] if site.agreed else []
    abort = [MessageRef("abort", last.run)] if last.kind == "offer" else []
    has_left = site.withdrawn or site.agreed is False
    return Look((*final, *abort), later_than=last if site.agreed else None, offers=has_left)
