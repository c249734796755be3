"""What a model is of: which accidents there are, and which rules that were mended are put back.

A rule that is put back lives here alone; the daemons have no such switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aggregator import rounds as aggregator_rounds
from shared.exchange.names import MessageRef
from shared.exchange.order import Exchange, Linked, ending, ending_of
from site_client import rounds as site_rounds
from tests.model_check.state import RUN, RUNS


@dataclass(frozen=True)
class Rules:
    """One model.

    Args:
        rounds, quorum, sites_per_round, in_turn: of the run; one more round closes it.
        looks_may_miss: a look sees nothing where something is.
        declines: a site may say no.
        poison, rotations, withdrawals: each site may send poison once, change its key once, withdraw.
        pauses, stops, deadlines: by the PI, and by the clock.
        crashes: of the aggregator and the sites.
        trouble: folders cannot be reached while a stop waits.
        sites: how many of the two sites may join at all.
        is_reduced: explore the model of ``reduced.py``.
        late_counts_next: the run has ``late: next``.
        late_counts_anyway: as it must not be: an answer counts in the next round, whatever its own verdict said.
        queue: a second run waits for its turn, is offered while the first is open, and is played after it.
        offers_come_anywhere: as it must not be: that run may be offered between a round and its verdict.
        turns_overlap: as it must not be: its turn comes whatever the first has come to.
        rounds_need_no_look: as it was: a round is signed without a look into the folder.
        aborts_untold: as it was: nobody is told of a run that was aborted.
        crossings_undefined: as it was: a withdrawal counts for whoever has it, whatever the end had read.
    """

    rounds: int = 2
    quorum: int = 1
    sites_per_round: int | None = None
    in_turn: bool = False
    looks_may_miss: bool = True
    declines: bool = True
    poison: bool = True
    rotations: bool = True
    withdrawals: bool = True
    pauses: bool = True
    stops: bool = True
    deadlines: bool = True
    crashes: bool = True
    trouble: bool = True
    sites: int = 2
    is_reduced: bool = False
    late_counts_next: bool = False
    late_counts_anyway: bool = False
    queue: bool = False
    offers_come_anywhere: bool = False
    turns_overlap: bool = False
    rounds_need_no_look: bool = False
    aborts_untold: bool = False
    crossings_undefined: bool = False

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs that are played, one after the other."""
        return RUNS if self.queue else (RUN,)

    @property
    def is_symmetric(self) -> bool:
        """Whether nothing depends on which of the two sites is which."""
        return not self.in_turn and self.sites_per_round is None

    def site_decides(self, facts: site_rounds.SiteFacts) -> site_rounds.Action:
        """What a site's daemon does."""
        return site_rounds.decide(facts)

    def aggregator_decides(self, facts: aggregator_rounds.RunFacts) -> list[aggregator_rounds.Action]:
        """What the aggregator's daemon does."""
        if self.aborts_untold and facts.aborted:
            return []
        return aggregator_rounds.decide(facts)

    def ending_at_site(self, known: Exchange, run: str = RUN) -> str | None:
        """How a run ended, by the site's record."""
        return self._as_it_was(known) or ending_of(known, run)

    def ending_at_aggregator(self, known: Exchange, run: str = RUN) -> str | None:
        """How a run ended in a folder, by the aggregator's record."""
        return self._as_it_was(known) or ending_of(known, run)

    def ending_by_audit(self, messages: Sequence[Linked], *, agreed: bool | None, run: str = RUN) -> str | None:
        """How a run ended in a folder, by its messages."""
        is_left = self.crossings_undefined and any(message.ref.kind == "withdrawal" for message in messages)
        return "withdrawn" if is_left else ending(run, messages, agreed=agreed)

    def _as_it_was(self, known: Exchange) -> str | None:
        is_left = self.crossings_undefined and known.is_settled(MessageRef("withdrawal", RUN))
        return "withdrawn" if is_left else None
