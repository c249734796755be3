"""The coordinate median (Yin et al. 2018): of each number by itself, the one in the middle; of two, their mean.

Breaks down once half of the sites lie: while fewer than half do, each number is between two that honest sites sent.
With 2 sites it is their mean, so it begins with 3. Every site counts alike: weighted, a site could outvote all others
by saying that it has more images than they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shared.learning.combinations.contract import UNSIGNED, Array, Rule


class Median(Rule):
    """The rule that this module describes."""

    fewest = 3
    weighs = False
    compares_all = True

    def average(self, values: Iterable[Array], weights: Sequence[float]) -> Array:
        """Return the median of each number: (n,) of each site -> (n,)."""
        ordered = np.sort(np.stack(list(values)), axis=0)  # (S, n)
        count = len(ordered)
        middle: Array = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        return middle + UNSIGNED
