"""What a site says: yes or no, that it leaves, and how well its model's uncertainty tells wrong from right."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.exchange.names import ABORT, CONSENT, RELIABILITY, WITHDRAWAL, Name
from shared.exchange.records.values import CountText, Payload, Record, Sentence, fewest, most


class Consent(Payload):
    """A site's yes or no to an offer; image counts per split where it says yes."""

    FILE: ClassVar[str] = CONSENT

    run: Name
    agrees: bool
    reason: Sentence
    images: dict[Literal["train", "validation", "test"], CountText]

    @model_validator(mode="after")
    def _a_yes_tells_what_it_trains_on(self) -> Consent:
        if self.agrees and self.images.get("train", "0") == "0":
            raise ValueError("images: a yes says how many images it trains on, one or more")
        return self

    @property
    def training_images(self) -> int:
        """How many images a site that agrees says it trains on; of "fewer than 5" the most that can be, 4."""
        return most(self.images["train"])


class Withdrawal(Payload):
    """``withdrawal.json``: from here on a site answers no round of a run it had agreed to."""

    FILE: ClassVar[str] = WITHDRAWAL

    run: Name
    reason: Sentence


class Abort(Payload):
    """``abort.json``: the run is over, and no final model comes here."""

    FILE: ClassVar[str] = ABORT

    run: Name
    reason: Sentence


def _is_rounded(value: float) -> float:
    if round(value, 4) != value:
        raise ValueError("must have four decimals or fewer")
    return value


def _is_in_hundredths(value: float) -> float:
    if round(value, 2) != value:
        raise ValueError("must have two decimals or fewer")
    return value


def _has_no_sign(value: float) -> float:
    if math.copysign(1, value) < 0:
        raise ValueError("must be written without a sign")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
RoundedShare = Annotated[Share, AfterValidator(_is_rounded), AfterValidator(_has_no_sign)]
Hundredths = Annotated[Share, AfterValidator(_is_in_hundredths)]


class Quantiles(Record):
    """Of a site's uncertainties, rounded to hundredths."""

    q10: Hundredths
    q25: Hundredths
    q50: Hundredths
    q75: Hundredths
    q90: Hundredths

    @model_validator(mode="after")
    def _rise(self) -> Quantiles:
        told = [self.q10, self.q25, self.q50, self.q75, self.q90]
        if told != sorted(told):
            raise ValueError("must not fall from one to the next")
        return self


class Reliability(Payload):
    """``reliability.yaml``: how well a site's uncertainty tells its wrong predictions from its right ones.

    Measured with the received model, before it is trained (Wang et al. 2023, Algorithm 1).

    Args:
        theta: the uncertainty from which on a prediction is held to be wrong.
        status: ``measured``, or why θ could not be and is 0.5.
        n: predictions looked at; of a segmentation, sampled pixels.
        n_wrong: how many of them were wrong; None where withheld.
        auroc: of the uncertainty for "wrong"; None where it is undefined or withheld.
        quantiles: of the uncertainty; None where withheld.
    """

    FILE: ClassVar[str] = RELIABILITY

    theta: Annotated[RoundedShare, Field(gt=0)]
    status: Literal["measured", "all right", "all wrong", "no separation"]
    n: CountText
    n_wrong: CountText | None
    auroc: RoundedShare | None
    quantiles: Quantiles | None

    @model_validator(mode="after")
    def _fallback_is_one_half(self) -> Reliability:
        if self.status != "measured" and self.theta != 0.5:
            raise ValueError(f"theta: must be 0.5 where the status is {self.status}")
        return self

    @model_validator(mode="after")
    def _tells_what_can_be(self) -> Reliability:
        """Check that no count or score is reported over few predictions, and no score if all or none were wrong."""
        n, wrong = self.n, self.n_wrong
        if n.startswith("fewer than ") and (wrong, self.auroc) != (None, None):
            raise ValueError(f"n_wrong, auroc: must be null where n is {n}")
        if self.auroc is not None and self.status in ("all right", "all wrong"):
            raise ValueError(f"auroc: must be null where the status is {self.status}")
        if wrong is None:
            return self
        least, greatest = {"all right": (0, 0), "all wrong": (most(n), most(n))}.get(self.status, (1, most(n) - 1))
        if most(wrong) < least or fewest(wrong) > greatest:
            raise ValueError(f"n_wrong: cannot be {wrong} of {n} where the status is {self.status}")
        return self
