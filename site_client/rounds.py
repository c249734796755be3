"""What the site does next: facts in, one small action out. Pure; it opens nothing.

The aggregator's messages come in one order only, so after each there are few places where the next can lie:

    nothing, final, or an offer we declined or have not answered   →  an offer of a new run
    an offer we agreed to                                          →  the first round we are sent, or final
    round n                                                        →  verdict n
    verdict n                                                      →  round n + 1, or final

The site first reads all there is, then acts on the last message: so after an absence it skips the rounds that
closed without it. Doing an action twice is harmless; after a crash the same action comes out again.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.exchange.names import Place


@dataclass(frozen=True)
class SiteFacts:
    """``last``: where the aggregator's last accepted message lies; the next two speak of it.

    ``unkept``: a run whose final model came but does not lie ready for use here yet.
    ``looked``: nothing newer was there when we last looked.
    """

    card_published: bool
    enrolled: bool
    unpublished: bool = False
    last: Place | None = None
    agreed: bool | None = None
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
    """Send what is sealed."""


@dataclass(frozen=True)
class LookForOffer:
    """See whether there is a run we do not know."""


@dataclass(frozen=True)
class LookForFirstRound:
    """See whether the run we agreed to has a round for us."""

    run: str


@dataclass(frozen=True)
class LookAt:
    """See whether one of these messages is there."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class AnswerOffer:
    """Decide on an offer."""

    run: str


@dataclass(frozen=True)
class AnswerRound:
    """Validate, train, and seal the answer."""

    run: str
    round_no: int


@dataclass(frozen=True)
class KeepFinal:
    """Put the final model together with this site's own parts, ready for use."""

    run: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do until something new is there."""


Look = LookForOffer | LookForFirstRound | LookAt
Action = PublishCard | ReadFederation | Publish | Look | AnswerOffer | AnswerRound | KeepFinal | Wait


def decide(site: SiteFacts) -> Action:
    """Return the one thing to do now."""
    if not site.card_published:
        return PublishCard()
    if not site.enrolled:
        return Wait() if site.looked else ReadFederation()
    if site.unpublished:
        return Publish()
    if not site.looked:
        return next_look(site)
    if site.last is not None and site.last.kind == "offer" and site.agreed is None:
        return AnswerOffer(site.last.run)
    if site.last is not None and site.last.kind == "round" and not site.answered:
        return AnswerRound(site.last.run, site.last.round_no)
    if site.unkept is not None:
        return KeepFinal(site.unkept)
    return Wait()


def next_look(site: SiteFacts) -> Look:
    """Where the aggregator's next message can lie."""
    last = site.last
    if last is None or last.kind == "final" or (last.kind == "offer" and not site.agreed):
        return LookForOffer()
    if last.kind == "offer":
        return LookForFirstRound(last.run)
    if last.kind == "round":
        return LookAt((Place("verdict", last.run, last.round_no),))
    return LookAt((Place("round", last.run, last.round_no + 1), Place("final", last.run)))
