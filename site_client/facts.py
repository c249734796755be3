"""What the site knows, read for ``rounds.decide``: from the messages that it signed and accepted. Whoever plays a site
without files gives an ``Exchange`` of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.exchange.names import MessageRef
from shared.exchange.order import Ending, Exchange, Replies, ending
from site_client import store
from site_client.rounds import SiteFacts


def site_facts(
    exchange: Exchange,
    *,
    card_published: bool,
    enrolled: bool,
    paused: bool,
    may_train: bool,
    unpublished: bool,
    wants_to_leave: Callable[[str], bool],
    unkept: str | None,
    looked: bool,
) -> SiteFacts:
    """Return the facts of a site.

    Args:
        wants_to_leave: whether a person here has decided to withdraw from a run.
        Others: as in ``SiteFacts``.
    """
    last = exchange.last_from_peer()
    ref = last.ref if last else None
    consent = store.consent(exchange, ref.run) if ref else None
    return SiteFacts(
        card_published=card_published,
        enrolled=enrolled,
        paused=paused,
        may_train=may_train,
        unpublished=unpublished,
        last=ref,
        agreed=consent.agrees if consent else None,
        leaving=ref is not None and wants_to_leave(ref.run) and may_leave(exchange, ref.run),
        withdrawn=ref is not None and exchange.message(MessageRef("withdrawal", ref.run)) is not None,
        answered=ref is not None and exchange.message(MessageRef("update", ref.run, ref.round_no)) is not None,
        unkept=unkept,
        looked=looked,
    )


def may_leave(exchange: Exchange, run: str) -> bool:
    """Whether there is a run to withdraw from: one that we agreed to, that is not over, and that we have not left."""
    consent = store.consent(exchange, run)
    is_left = exchange.message(MessageRef("withdrawal", run)) is not None
    return consent is not None and consent.agrees and not is_left and ending_of(exchange, run) is None


def ending_of(exchange: Exchange, run: str) -> Ending | None:
    """Return how a run ended here, as far as is known; None while it goes on."""
    consent = store.consent(exchange, run)
    messages = [*exchange.own_messages(), *exchange.peer_messages()]
    return ending(run, messages, agreed=consent.agrees if consent else None)


def may_answer(exchange: Exchange, ref: MessageRef, card: str) -> frozenset[str | None]:
    """Digests of which the aggregator's next message, at ``ref``, must answer one; None stands for no message.

    Args:
        card: digest of our card.
    """
    replies = Replies(card, exchange.own_messages())
    for message in sorted(exchange.peer_messages(), key=lambda message: message.manifest.seq):
        replies.take(message)
    return replies.answers(ref)
