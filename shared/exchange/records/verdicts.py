"""What became of an answer, and which model was chosen."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from shared.exchange.names import CARD, MAX_ROUND, VERDICT, Name
from shared.exchange.records.values import DecimalText, Payload, RoundText, Sentence, ShareText


class Verdict(Payload):
    """What became of one site's answer in one round.

    ``score`` and ``tolerance``, which it must exceed, are in [0, 1], None where models are not scored; ``theta`` in
    (0, 1] is what the site sent, where the method asks for it; ``weight`` in [0, 1] is the site's share of the
    aggregate; ``epsilon`` is what the site says that it has spent of its images' privacy in the run so far, where the
    run is private.
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
