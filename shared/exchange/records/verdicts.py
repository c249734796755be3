"""What became of an answer, and which model was chosen."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from shared.doors.numbers import finite
from shared.exchange.names import CARD, MAX_ROUND, VERDICT, Name
from shared.exchange.records.values import IF_SAID, DecimalText, Digest, Payload, Record, RoundText, Sentence, ShareText


class CameLate(Record):
    """What became of a site's answer to the round before, which came once that was closed.

    ``update`` names it, by its digest; ``score`` is what it scored as it counts here; ``weight`` in [0, 1] is its share
    of this round's aggregate, None where it does not count.
    """

    update: Digest
    score: ShareText | None
    weight: ShareText | None
    reason: Sentence


class Verdict(Payload):
    """What became of one site's answer in one round.

    ``score`` and ``tolerance``, which it must exceed, are in [0, 1], None where models are not scored; ``theta`` in
    (0, 1] is what the site sent, where the method asks for it; ``weight`` in [0, 1] is the answer's share of the
    aggregate; ``epsilon`` is what the site says that it has spent of its images' privacy in the run so far, where the
    run is private. ``late`` is what became of the answer to the round before, where the run has ``late: next`` and that
    came in the place of this one.
    """

    FILE: ClassVar[str] = VERDICT

    run: Name
    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    site: Name
    status: Literal["accepted", "omitted", "late", "withdrawn", "validated"]
    score: ShareText | None
    tolerance: ShareText | None
    theta: ShareText | None
    weight: ShareText | None
    epsilon: DecimalText | None = None
    reason: Sentence
    late: Annotated[CameLate | None, IF_SAID] = None

    @property
    def share(self) -> float:
        """The site's share of the aggregate, in [0, 1], by this answer or by one that came late."""
        told = self.weight if self.late is None else self.late.weight
        return 0.0 if told is None else finite(told)

    @property
    def of_late(self) -> str:
        """What became of the answer to the round before, where that came late; else empty."""
        if self.late is None:
            return ""
        does = "counts here" if self.late.weight else "does not count"
        return f"the answer to round {self.round - 1} {does}: {self.late.reason}"

    @property
    def why(self) -> str:
        """Its reason, and what became of an answer that came late."""
        return f"{self.reason}; {self.of_late}" if self.of_late else self.reason


class FinalCard(Payload):
    """``card.json``: which aggregate was chosen and why.

    ``validation``: mean over sites, in [0, 1], by aggregate. ``took_part``: the sites whose weight is above 0, by round
    that was opened. ``epsilon``: by site, the most that it said it had spent of its images' privacy; empty where the
    run is not private.
    """

    FILE: ClassVar[str] = CARD

    run: Name
    task: Name
    method: Name
    chosen_round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    score_name: Name
    validation: dict[RoundText, ShareText]
    took_part: dict[RoundText, list[Name]]
    epsilon: dict[Name, DecimalText] = {}
    reason: Sentence
