"""FedAvg (McMahan et al. 2017): every training image counts the same.

    w ← Σ_{k in S} (n_k / n) x_k        n_k: training images of site k, n = Σ_{k in S} n_k

All parameters and BatchNorm's running statistics travel, but for a task's local part.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.learning.methods.contract import Contribution, Method


class FedAvg(Method):
    """The method that this module describes."""

    name = "fedavg"

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        """Return n_k / n for each of the accepted sites."""
        total = sum(contribution.images for contribution in accepted.values())
        return {site: contribution.images / total for site, contribution in accepted.items()}
