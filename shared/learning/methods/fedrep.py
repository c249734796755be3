"""FedRep (Collins et al. 2021): the sites learn features together, and each its own head on them.

    site        the head: h ← h − η ∇_h loss(h, w)          in ``head_epochs``, the body w at rest
                the body: x ← x − η ∇_x loss(h, x)          in the run's epochs, the head at rest
                sends x
    aggregator  w ← Σ_{k in S} (n_k / n) x_k                n_k: training images of site k, n = Σ_{k in S} n_k

The head is what turns features into logits, also where other methods share it; the body is all the rest. What is at
rest is moved neither by momentum nor by weight decay. BatchNorm's statistics are no parameters: they are measured anew
after every epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from torch import nn

from shared.learning.methods import terms
from shared.learning.methods.fedavg import FedAvg
from shared.learning.tasks.contract import Network


class FedRep(terms.FedRep, FedAvg):
    """The method that this module describes."""

    name = "fedrep"

    def stays(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return the head."""
        return cast(Network, network).heads

    def phases(self, network: nn.Module, epochs: int) -> list[list[nn.Parameter]]:
        """Return the head first, then the body."""
        head = [parameter for module in self.stays(network) for parameter in module.parameters()]
        body = [parameter for parameter in network.parameters() if all(parameter is not other for other in head)]
        return [head] * self.options.head_epochs + [body] * epochs
