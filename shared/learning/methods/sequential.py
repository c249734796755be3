"""Cyclic weight transfer (Chang et al. 2018): the model goes from site to site, and each trains it in its turn.

    aggregator  asks site k = sites[(round − 1) mod their number], in the order of their names
    site        trains the model that it received
    aggregator  w ← x_k

Where a site does not answer in its turn, the next one is asked in its place; if in the end both answer, one of the two
models is lost: the model is never a mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.learning.methods import terms
from shared.learning.methods.contract import Contribution, Method


class Sequential(terms.Sequential, Method):
    """The method that this module describes."""

    name = "sequential"

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        """Return 1 for one site: of several, the first by name."""
        chosen = min(accepted)
        return {site: float(site == chosen) for site in accepted}
