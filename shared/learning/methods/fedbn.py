"""FedBN (Li et al. 2021): FedAvg that leaves every BatchNorm at its site.

    w ← Σ_{k in S} (n_k / n) x_k        over all that travels: neither BatchNorm nor the task's own part

A site's cameras show in the means and spreads of its features; what normalises them is the site's own. A BatchNorm is
known by its module's type: in torchvision's ResNet-50 four of them have no "bn" in their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from shared.learning.batch_norm import batch_norms
from shared.learning.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """The method that this module describes."""

    name = "fedbn"
    about_batch_norm = True

    def stays(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return the BatchNorms, which stay at the site with their statistics."""
        return batch_norms(network)
