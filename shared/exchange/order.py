"""What follows what in one folder: which message an aggregator's message answers, and how a run ends there.

A site's message answers the one that its kind names (``MessageRef.answers``), and so does a verdict; an offer answers
the site's card. A round, a final model and an abort answer **the site's newest message that the aggregator had accepted
when it signed them**, or the card before the first. So whoever holds the folder can tell, of two messages that crossed
on their way, whether the aggregator knew the one when it signed the other:

    the end of a run that had not read the site's consent, decline or withdrawal    that one came too late
    a round that had not read the withdrawal                                        the site leaves it unanswered

Daemons and audit ask the functions here, and so have one record of what crossed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.names import KINDS, Kind, MessageRef
from shared.exchange.records.answers import Consent
from shared.exchange.records.values import AnyPayload, sentence
from shared.trouble import held_against

Ending = Literal["declined", "withdrawn", "finished", "aborted"]
"""How a run ended in one folder; ``finished``: the final model was sent there."""

ANSWERS_NEWEST: frozenset[Kind] = frozenset(name for name, kind in KINDS.items() if kind.answers == "newest")
"""The kinds whose answer says what the aggregator had read."""

BEGUN: frozenset[Kind] = frozenset({"round", "verdict"})
"""The kinds of which the aggregator's newest message of a run is while its rounds go on."""

ANSWERS_ANOTHER = "does not answer the message it should answer, or that one is missing or does not hold"


class Link(Protocol):
    """What chains a manifest."""

    @property
    def seq(self) -> int:
        """The sender's own number of it, from 1."""

    @property
    def previous(self) -> str | None:
        """The digest of the sender's message before it."""

    @property
    def in_reply_to(self) -> str | None:
        """The digest of what it answers."""


class Linked(Protocol):
    """A message, as far as its place in the order goes."""

    @property
    def ref(self) -> MessageRef:
        """Where it lies."""

    @property
    def manifest(self) -> Link:
        """What chains it."""

    @property
    def digest(self) -> str:
        """SHA-256 of its manifest."""


class Exchange(Protocol):
    """What one side knows of one folder; a ``Mirror`` is one."""

    def message(self, ref: MessageRef) -> Linked | None:
        """Return the message at ``ref`` if it is signed here, or accepted."""

    def refusal(self, ref: MessageRef) -> str | None:
        """Return why the message at ``ref`` was refused for good, or None."""

    def is_settled(self, ref: MessageRef) -> bool:
        """Return whether the message at ``ref`` was accepted or refused."""

    def record(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload:
        """Return a record of a message."""

    def own_messages(self) -> Sequence[Linked]:
        """Return what was signed here, in order."""

    def peer_messages(self) -> Sequence[Linked]:
        """Return what was accepted of the other side, in no order."""

    def last_from_peer(self) -> Linked | None:
        """Return the other side's last accepted message."""


class Replies:
    """What the messages of one folder may answer; the aggregator's are taken in their order.

    Args:
        card: digest of the site's card; None where it is not there.
        sent: the site's messages, in any order.
    """

    def __init__(self, card: str | None, sent: Iterable[Linked]) -> None:
        self._card = card
        self._by_ref: dict[MessageRef, Linked] = {}
        self._numbers = {card: 0} if card else {}
        self._read = 0  # number of the site's newest message that one of the aggregator's answers
        for message in sent:
            self._by_ref[message.ref] = message
            self._numbers[message.digest] = message.manifest.seq

    def take(self, message: Linked) -> None:
        """Go on to the aggregator's next message."""
        self._by_ref[message.ref] = message
        self._read = max(self._read, self._numbers.get(message.manifest.in_reply_to or "", 0))

    def signed(self, ref: MessageRef) -> Linked | None:
        """Return the message at ``ref``, if it was sent or taken."""
        return self._by_ref.get(ref)

    def answers(self, ref: MessageRef) -> frozenset[str | None]:
        """Return the digests of which the next message at ``ref`` must answer one; None stands for no message."""
        if ref.kind in ANSWERS_NEWEST:
            first, last = self._first(ref), self._last(ref)
            return frozenset(digest for digest, number in self._numbers.items() if first <= number <= last)
        if ref.answers is None:
            return frozenset({self._card} if self._card else ())
        answered = self.signed(ref.answers)
        digests: frozenset[str | None] = frozenset({answered.digest} if answered else ())
        # A verdict on an update that never came, came late or was refused answers nothing.
        return digests | {None} if ref.kind == "verdict" else digests

    def fault(self, ref: MessageRef, in_reply_to: str | None) -> str | None:
        """Return what is wrong with what the next message at ``ref`` answers; None if nothing is."""
        number = self._numbers.get(in_reply_to or "")
        if ref.kind in ANSWERS_NEWEST and number is not None:
            first, last = self._first(ref), self._last(ref)
            if first <= number <= last:
                return None
            if number > last:
                return "was signed although the site's withdrawal from the run was known"
            if number < self._read:
                return "answers an older message of the site's than a message before it"
        elif in_reply_to in self.answers(ref):
            return None
        return ANSWERS_ANOTHER

    def had_read(self, ref: MessageRef, in_reply_to: str | None) -> bool:
        """Return whether a message of the aggregator's that answers this had read the site's message at ``ref``."""
        message = self.signed(ref)
        return message is not None and message.manifest.seq <= self._numbers.get(in_reply_to or "", 0)

    def _first(self, ref: MessageRef) -> float:
        """Return the number of the oldest message that the aggregator's newest can be said to have read."""
        consent = self.signed(MessageRef("consent", ref.run))
        if ref.kind == "abort":
            return self._read
        return max(self._read, consent.manifest.seq) if consent else math.inf

    def _last(self, ref: MessageRef) -> float:
        """Return the number of the newest message that may be answered: nothing follows a withdrawal."""
        withdrawal = self.signed(MessageRef("withdrawal", ref.run))
        return withdrawal.manifest.seq - 1 if withdrawal else math.inf


def may_follow(before: MessageRef, ref: MessageRef) -> bool:
    """Return whether the aggregator's message at ``ref`` may come next after its message ``before`` of the same run."""
    match ref.kind:
        case "verdict":
            return before == MessageRef("round", ref.run, ref.round_no)
        case "round":
            return before.kind == "offer" or (before.kind == "verdict" and before.round_no < ref.round_no)
        case "final":
            return before.kind in ("offer", "verdict")
        case "abort":
            return before.kind == "offer"
    return False


class Order:
    """The order of the aggregator's messages in one folder, which are taken one after the other.

    A run that waits for its turn may be offered while another is open, but not between a round and its verdict. From a
    run's first round to its end nothing else comes of any other run.
    """

    def __init__(self) -> None:
        self._last: MessageRef | None = None
        self._newest: dict[str, MessageRef] = {}  # of each run

    def take(self, ref: MessageRef) -> None:
        """Go on to the aggregator's next message."""
        self._last = self._newest[ref.run] = ref

    def fault(self, ref: MessageRef, has_left: Callable[[str], bool]) -> str | None:
        """Return what is wrong with where the next message lies; None if nothing is.

        Args:
            has_left: whether the aggregator, when it signed that, knew of the site's withdrawal from a run.
        """
        last, before = self._last, self._newest.get(ref.run)
        if last is not None and last.kind == "round" and ref != MessageRef("verdict", last.run, last.round_no):
            return f"may not follow {last.path}, the aggregator's message before it"
        if ref.kind == "offer":
            return None
        if before is None:
            return "comes without the offer of its run before it"
        if not may_follow(before, ref):
            return f"may not follow {before.path}, the message of its run before it"
        if ref.kind == "verdict":
            return None  # it comes right after its round
        begun = (run for run, newest in self._newest.items() if run != ref.run and newest.kind in BEGUN)
        open_run = next((run for run in begun if not has_left(run)), None)
        return f"comes before run {open_run} had ended here" if open_run is not None else None


def consent_of(exchange: Exchange, run: str) -> Consent | None:
    """Return a site's answer to the offer, or None if there is none; at the aggregator an ill-formed one counts as no.

    Raises:
        ActionRequiredError: it is not as it was signed or accepted; or it was signed here and cannot be read.
    """
    ref = MessageRef("consent", run)
    if exchange.message(ref) is None:
        return None
    try:
        with held_against(ref.path):
            return exchange.record(ref, Consent)
    except RejectedError as error:
        if ref in (message.ref for message in exchange.own_messages()):
            # A site that took its own yes for a no would let go of what its run needs.
            raise ActionRequiredError(
                f"{error}: it was signed here; install the version of dropfed that wrote it"
            ) from error
        return Consent(run=run, agrees=False, reason=sentence(str(error)), images={})


def ending_of(exchange: Exchange, run: str) -> Ending | None:
    """Return how a run ended in one folder, as far as one side knows; None while it goes on there.

    Raises:
        ActionRequiredError: as for ``consent_of``.
    """
    consent = consent_of(exchange, run)
    messages = [*exchange.own_messages(), *exchange.peer_messages()]
    known = ending(run, messages, agreed=consent.agrees if consent else None)
    # A withdrawal that was refused is none of these messages, and counts all the same.
    return "withdrawn" if known is None and exchange.is_settled(MessageRef("withdrawal", run)) else known


def ending(run: str, messages: Iterable[Linked], *, agreed: bool | None) -> Ending | None:
    """Return how a run ended in one folder, by its messages; None while it goes on there.

    Args:
        messages: of both sides and of all runs, as far as they are known.
        agreed: what the site's consent says; None without one.
    """
    numbers: dict[str | None, int] = {}
    of_run: dict[Kind, Linked] = {}
    for message in messages:
        if message.ref.is_from_site:
            numbers[message.digest] = message.manifest.seq
        if message.ref.run == run and not message.ref.round_no:
            of_run[message.ref.kind] = message
    end, consent, withdrawal = (
        of_run.get("final") or of_run.get("abort"),
        of_run.get("consent"),
        of_run.get("withdrawal"),
    )
    # What the end had not read came too late; without an end nothing does.
    read = numbers.get(end.manifest.in_reply_to, 0) if end else max(numbers.values(), default=0)
    if withdrawal is not None and withdrawal.manifest.seq <= read:
        return "withdrawn"
    if consent is not None and agreed is False and consent.manifest.seq <= read:
        return "declined"
    if end is None:
        return None
    return "finished" if end.ref.kind == "final" else "aborted"
