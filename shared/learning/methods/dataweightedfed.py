"""DataWeightedFed (Jiang et al. 2025): a few sites drawn for each round, each counted by its images.

    w ← Σ_{k in S} (n_k / Σ_{j in S} n_j) x_k       S: the round's accepted sites

So far this is FedAvg. The rest of the paper is the run's own to set, with any method: ``sites_per_round``, how many of
the sites a round draws, decided by the run's seed; ``epochs``, 1 there; and sites may join between rounds, since the
weights are of the round's sites alone and sum to 1 whoever they are.
"""

from __future__ import annotations

from shared.learning.methods.fedavg import FedAvg


class DataWeightedFed(FedAvg):
    """The method that this module describes."""

    name = "dataweightedfed"
