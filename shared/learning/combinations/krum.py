"""Krum and multi-Krum (Blanchard et al. 2017): only those count whose answers lie closest to the others'.

    score     Σ of its S − f − 2 smallest squared distances to other sites
    counts    the site of the lowest score, under multi-Krum the m of the lowest; of equal ones the first by name

Promises nothing with more than f liars, or with fewer than 2f + 3 sites. Until then each site that counts, should it be
a liar, is no farther from some honest site than √(S − f − 2) times the greatest distance between two honest ones: of
those that it is measured by at least one is honest, and some honest site's score is no lower. For multi-Krum m is at
most S − f − 2, as El Mhamdi et al. (2018) want it.

An answer is all that it brings to be combined: the model, with BatchNorm's statistics, and the groups beside it, such
as control variates. What was not looked at would be where to lie. Those that count are averaged by the method's
weights, which cannot lead out of where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from shared.learning.combinations.contract import Rule


class Krum(Rule):
    """The rule that this module describes.

    Args:
        hostile: f, >= 1.
        keep: m, >= 1; 1 is Krum.
    """

    measures_distances = True

    def __init__(self, hostile: int, keep: int = 1) -> None:
        self._hostile = hostile
        self._keep = keep
        self.fewest = max(2 * hostile + 3, keep + hostile + 2)

    def choose(self, sites: Sequence[str], distances: Mapping[tuple[str, str], float]) -> list[str]:
        """Return the sites of the lowest scores."""
        closest = len(sites) - self._hostile - 2

        def score(site: str) -> float:
            return fsum(sorted(distance for pair, distance in distances.items() if site in pair)[:closest])

        return sorted(sorted(sites, key=lambda site: (score(site), site))[: self._keep])
