"""How accepted models are combined, whatever the method: by their weighted mean, or so that some may lie."""

from __future__ import annotations

from shared.exchange.records import run as rules
from shared.exchange.records.run import Combination
from shared.learning.combinations.contract import Rule
from shared.learning.combinations.krum import Krum
from shared.learning.combinations.median import Median
from shared.learning.combinations.trimmed_mean import TrimmedMean


def open_rule(combination: Combination) -> Rule:
    """Return the rule that a run names, with the run's settings."""
    match combination:
        case rules.Median():
            return Median()
        case rules.TrimmedMean(cut=cut):
            return TrimmedMean(cut)
        case rules.Krum(hostile=hostile, keep=keep):
            return Krum(hostile, keep)
        case _:
            return Rule()
