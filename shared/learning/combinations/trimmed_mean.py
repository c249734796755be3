"""The trimmed mean (Yin et al. 2018): of each number by itself, the mean without a share β of the sites at each end.

Breaks down once more than a share β of the sites lie: of S sites, ⌊β S⌋ are cut at each end, and while no more than
those lie, each number is between two that honest sites sent. Of so few sites that none would be cut it is no more than
the mean, so it begins with 1 / β. Every site counts alike, as under the median. What is left is added from the least to
the greatest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np

from shared.learning.combinations.contract import UNSIGNED, Array, Rule


class TrimmedMean(Rule):
    """The rule that this module describes.

    Args:
        cut: β, in (0, 0.5).
    """

    weighs = False
    compares_all = True

    def __init__(self, cut: float) -> None:
        self._cut = cut
        self.fewest = next(sites for sites in count(1) if self._at_each_end(sites))

    def average(self, values: Iterable[Array], weights: Sequence[float]) -> Array:
        """Return the trimmed mean of each number: (n,) of each site -> (n,)."""
        ordered = np.sort(np.stack(list(values)), axis=0)  # (S, n)
        cut = self._at_each_end(len(ordered))
        kept = ordered[cut : len(ordered) - cut]
        total: Array = kept[0] + UNSIGNED
        for each in kept[1:]:
            total = total + each
        return total / len(kept)

    def _at_each_end(self, sites: int) -> int:
        # 0.07 · 100 is 7.000000000000001, and 0.29 · 100 is 28.999999999999996.
        return int(self._cut * sites + 1e-9)
