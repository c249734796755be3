"""FedProx (Li et al. 2020): FedAvg whose sites are held near the model that they received.

site        gradient + μ (x − w)        of the term μ/2 · ‖x − w‖², from the first step of the first round
aggregator  as FedAvg
"""

from __future__ import annotations

from shared.learning.methods import terms
from shared.learning.methods.contract import Local, Tensors
from shared.learning.methods.fedavg import FedAvg


class FedProx(terms.FedProx, FedAvg):
    """The method that this module describes."""

    name = "fedprox"

    def correction(self, local: Local) -> Tensors:
        """Return μ (x − w)."""
        return {name: self.options.mu * (local.x[name].detach() - w) for name, w in local.received.items()}
