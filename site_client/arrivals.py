"""What the aggregator has put into the folder: where it can lie, and how much of it is fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.errors import DoubtfulError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encoding import max_weights_bytes
from shared.exchange.names import MAX_START_BYTES, MessageRef
from shared.exchange.places import rounds_in, runs_in
from shared.exchange.signing import digest_of
from shared.folder.contract import Folder
from site_client import store
from site_client.facts import may_answer
from site_client.rounds import Look

WHOLE_LOOK_EVERY = 5  # looks, while a round's folder is there and its manifest is not
OFFERS_EVERY = 20  # looks, while something else is awaited: people decide about offers, and each look is a request


class Arrivals:
    """The aggregator's end of our folder.

    Args:
        on_receiving: told where a message lies before it is fetched.
    """

    def __init__(self, folder: Folder, channel: Channel, on_receiving: Callable[[MessageRef], None]) -> None:
        self._folder = folder
        self._ledger, self._inbox, self._outbox = channel.ledger, channel.inbox, channel.outbox
        self._on_receiving = on_receiving
        self._being_filled: list[MessageRef] = []
        self._looks = 0  # since anything was noticed

    def runs(self) -> list[str]:
        """Return the runs that have a place in the folder."""
        return runs_in(self._folder)

    def offers(self) -> list[MessageRef]:
        """Return where the offers lie that we have not received."""
        offers = [MessageRef("offer", run) for run in self.runs()]
        return [offer for offer in offers if self._ledger.message(offer) is None]

    def rounds_of(self, run: str) -> list[MessageRef]:
        """Return where the rounds lie that the aggregator sent us, or is sending, in order."""
        return [MessageRef("round", run, number) for number in sorted(rounds_in(self._folder, run))]

    def look(self, look: Look) -> MessageRef | None:
        """Fetch the first message that is there of those that can be next; return which one it is, if any.

        While the aggregator fills a round's folder, which may take minutes, most looks go into that folder alone.
        Offers of further runs are looked for now and then, and after whatever was noticed: they may come in numbers.

        Raises:
            RejectedError, DoubtfulError: as ``fetch_first``.
        """
        self._looks += 1
        if self._being_filled and self._looks % WHOLE_LOOK_EVERY:
            refs = self._being_filled
        else:
            self._being_filled = [ref for last in look.later_than for ref in self._later_rounds(last)]
            refs = [*self._being_filled, *look.refs]
            if look.offers and (not refs or self._looks % OFFERS_EVERY == 1):
                return self.fetch_first([*refs, *self.offers()])
        fetched = self.fetch_first(refs)
        if fetched is None and look.offers and self._looks == 0:  # what was noticed may follow an offer
            fetched = self.fetch_first(self.offers())
        return fetched

    def _later_rounds(self, after: MessageRef) -> list[MessageRef]:
        """Return where the rounds lie that follow a round, or an offer, in order."""
        return [ref for ref in self.rounds_of(after.run) if ref.round_no > after.round_no]

    def fetch_first(self, refs: Sequence[MessageRef]) -> MessageRef | None:
        """Fetch the first of these messages that is there and holds; return which one does, if any.

        Raises:
            RejectedError: the aggregator has signed what no such message may be.
            DoubtfulError: there is none that holds, and one failed twice, which may not be the aggregator's doing.
        """
        doubtful = None
        for ref in refs:
            if (manifest := self._inbox.notice(ref)) is not None:
                self._looks, self._being_filled = 0, []
                self._on_receiving(ref)
                try:
                    fetched = self._inbox.fetch(
                        ref,
                        manifest,
                        answers=self._answers(ref),
                        max_weights_bytes=self._max_weights_bytes(ref),
                        without_weights=not self._needs_weights(ref),
                    )
                except DoubtfulError as error:  # put there by anybody: it must not hide what the aggregator has sent
                    doubtful = doubtful or error
                    continue
                if fetched is not None:
                    self._outbox.prune(ref.run)
                    return ref
        if doubtful is not None:
            raise doubtful
        return None

    def _answers(self, ref: MessageRef) -> frozenset[str | None]:
        """Return which of our messages the aggregator's message at ``ref`` may answer."""
        card = digest_of((self._ledger.root / names.SITE_CARD).read_bytes())
        return may_answer(self._ledger, ref, card)

    def _needs_weights(self, ref: MessageRef) -> bool:
        """Return whether we shall compute with what a message brings.

        A final model that comes after our withdrawal was signed before that was read: it is ours. Not so a round that
        does; and a past round's weights may be gone from the folder. That it is past only the aggregator can say.
        """
        if ref.kind != "round":
            return True
        has_left = self._ledger.message(MessageRef("withdrawal", ref.run)) is not None
        verdict = MessageRef("verdict", ref.run, ref.round_no)
        manifest = self._inbox.notice(verdict)
        is_past = manifest is not None and self._inbox.is_signed(verdict, manifest)
        return not (has_left or is_past)

    def _max_weights_bytes(self, ref: MessageRef) -> int:
        """Return the most bytes of tensor files that the aggregator's message at ``ref`` may bring.

        A message that brings none is read whatever the offer says: an abort also ends a run whose offer does not hold.

        Raises:
            RejectedError: the run's offer, which says how many they are, does not hold.
        """
        if ref.kind == "offer":
            return MAX_START_BYTES
        if ref.kind not in ("round", "final"):
            return 0
        configuration, sharing = store.offer(self._ledger, ref.run)
        return max_weights_bytes(sharing, ref.kind, configuration.wire)
