"""Where what an aggregator makes of a run lies, for who makes it and for who makes it again.

start.safetensors                           what sites begin with and keep
rounds/0000/aggregate.safetensors           the first global model
rounds/0007/aggregate.safetensors           the next global model
rounds/0007/own/SITE.safetensors            the next global model of one site, where each has its own
rounds/0007/state-GROUP.safetensors         what a method has beside the model
rounds/0007/settled-GROUP.safetensors       what goes with the aggregate of round 6, should it be chosen
rounds/0007/answers/SITE/model.safetensors  a site's model in the plain form, where it came in another
rounds/0007/late/SITE.safetensors           a site's model of round 6 as it counts here, where it came late
final/model.safetensors                     the chosen model
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from shared.exchange import names
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import DecimalText, Digest, Record, Sentence, sentence


class Scored(Record):
    """``scores/SITE.json``: a score in [0, 1], the site's θ and its ε, or None and the reason why there is none."""

    score: DecimalText | None
    theta: DecimalText | None
    epsilon: DecimalText | None = None
    reason: Sentence

    @classmethod
    def refused(cls, why: str) -> Scored:
        """Return what the check of an answer gives that cannot count, and why, in any words."""
        return cls(score=None, theta=None, epsilon=None, reason=sentence(why))


class Late(Record):
    """What the check of an answer to the round before gave, which came once that was closed; ``update``: its digest."""

    update: Digest
    scored: Scored


class RunFiles(ABC):
    """One run's files below ``home``."""

    def __init__(self, home: Path, run: str) -> None:
        self.home = home
        self.run = run

    @abstractmethod
    def configuration(self) -> RunConfiguration:
        """Return the run's configuration as offered."""

    @abstractmethod
    def sharing(self) -> Sharing:
        """Return what travels in this run and what stays."""

    @abstractmethod
    def agreed(self, round_no: int) -> int:
        """Return how many sites had agreed to the run when somebody was last asked in a round; withdrawn ones count."""

    @property
    def start(self) -> Path:
        """What sites begin with and keep, where there is such."""
        return self.home / names.START

    def aggregate_path(self, round_no: int) -> Path:
        """Return the global model made in a round; 0 is the first one."""
        return self._round(round_no) / "aggregate.safetensors"

    def own_aggregate_path(self, round_no: int, site: str) -> Path:
        """Return the global model made in a round for one site alone."""
        return self._round(round_no) / "own" / f"{site}{names.WEIGHTS_SUFFIX}"

    def aggregate_for(self, round_no: int, site: str) -> Path:
        """Return the global model made in a round as one site gets it."""
        own = self.own_aggregate_path(round_no, site)
        return own if own.exists() else self.aggregate_path(round_no)

    def state_path(self, round_no: int, group: str) -> Path:
        """Return a group that a method has beside the model made in a round; 0 is the beginning."""
        return self._round(round_no) / names.state_file(group)

    def settled_path(self, round_no: int, group: str) -> Path:
        """Return a group that goes with the model which a round's answers were measured with."""
        return self._round(round_no) / f"settled-{group}{names.WEIGHTS_SUFFIX}"

    def update_path(self, round_no: int, site: str) -> Path:
        """Return a site's model in the plain form."""
        return self._round(round_no) / "answers" / site / names.SITE_MODEL

    def late_path(self, round_no: int, site: str) -> Path:
        """Return a site's model of the round before as it counts in this one."""
        return self._round(round_no) / "late" / f"{site}{names.WEIGHTS_SUFFIX}"

    @property
    def final_model(self) -> Path:
        """Where the chosen model lies once there is one."""
        return self.home / "final" / names.FINAL_MODEL

    def _round(self, round_no: int) -> Path:
        return self.home / "rounds" / f"{round_no:04d}"
