"""What the site knows, read for ``rounds.decide``: from the messages that it signed and accepted. Whoever plays a site
without files gives an ``Exchange`` of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shared.exchange.names import Kind, MessageRef
from shared.exchange.order import ANSWERS_NEWEST, BEGUN, Exchange, Linked, Replies, consent_of, ending_of
from site_client.rounds import RunFacts


def runs_going_on(exchange: Exchange, wants_to_leave: Callable[[str], bool]) -> tuple[RunFacts, ...]:
    """Return the facts of each run that may bring messages still, in the order of their offers.

    Args:
        wants_to_leave: whether a person here has decided to withdraw from a run.
    """
    return tuple(_run_facts(exchange, last.ref, wants_to_leave) for last in going_on(exchange))


def _run_facts(exchange: Exchange, last: MessageRef, wants_to_leave: Callable[[str], bool]) -> RunFacts:
    consent = consent_of(exchange, last.run)
    return RunFacts(
        last=last,
        agreed=consent.agrees if consent else None,
        leaving=wants_to_leave(last.run) and may_leave(exchange, last.run),
        withdrawn=exchange.message(MessageRef("withdrawal", last.run)) is not None,
        answered=exchange.message(MessageRef("update", last.run, last.round_no)) is not None,
    )


def going_on(exchange: Exchange) -> list[Linked]:
    """Return the aggregator's last message of each run that may bring messages still, in the order of their offers.

    Of a run that we have left nothing more comes once the aggregator, in another run, has answered that or what we sent
    after it.
    """
    own = {message.digest: message.manifest.seq for message in exchange.own_messages()}
    newest: dict[str, Linked] = {}
    read = 0  # number of our newest message that the aggregator is known to have read
    for message in sorted(exchange.peer_messages(), key=lambda message: message.manifest.seq):
        newest[message.ref.run] = message
        if message.ref.kind in ANSWERS_NEWEST:
            read = max(read, own.get(message.manifest.in_reply_to or "", 0))
    return [
        message
        for run, message in newest.items()
        if message.ref.kind not in ("final", "abort") and _left_with(exchange, run) > read
    ]


def is_left(exchange: Exchange, run: str) -> bool:
    """Return whether we have said that we take no part in a run, or none any more."""
    return _left_with(exchange, run) < math.inf


def _left_with(exchange: Exchange, run: str) -> float:
    """Return the number of the message by which we left a run; infinity if we have not."""
    consent = consent_of(exchange, run)
    kind: Kind = "consent" if consent is not None and not consent.agrees else "withdrawal"
    left = exchange.message(MessageRef(kind, run))
    return left.manifest.seq if left is not None else math.inf


def current(exchange: Exchange) -> Linked | None:
    """Return the aggregator's last message, but for offers that came while a run is played: then the last of that."""
    runs = (last for last in going_on(exchange) if last.ref.kind in BEGUN and not is_left(exchange, last.ref.run))
    return next(runs, exchange.last_from_peer())


def may_leave(exchange: Exchange, run: str) -> bool:
    """Return whether there is a run to withdraw from: we agreed to it, it is not over, and we have not left it."""
    consent = consent_of(exchange, run)
    is_left = exchange.message(MessageRef("withdrawal", run)) is not None
    return consent is not None and consent.agrees and not is_left and ending_of(exchange, run) is None


def may_answer(exchange: Exchange, ref: MessageRef, card: str) -> frozenset[str | None]:
    """Return the digests of which the aggregator's next message, at ``ref``, must answer one; None is no message.

    Args:
        card: digest of our card.
    """
    replies = Replies(card, exchange.own_messages())
    for message in sorted(exchange.peer_messages(), key=lambda message: message.manifest.seq):
        replies.take(message)
    return replies.answers(ref)
