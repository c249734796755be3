"""FedDyn (Acar et al. 2021): each site's loss is tilted until all sites' optima are one and the same.

    site        gradient − h_k + α (x − w)              of the terms −⟨h_k, x⟩ + α/2 · ‖x − w‖²
                h_k ← h_k − α (x − w)
    aggregator  H ← H − α Σ_{k in S} (x_k − w)          that is Σ h_k over all N sites that have agreed
                w ← mean x_k − H / (α N)

With ``weighted`` a site has α / w_k in the place of α, w_k = n_k / n̄, as in the code released with FedDC (Gao et al.
2022); the aggregator's w stays as it is, for α is no part of it.

h_k is the gradient of the site's own loss where its training ended; a site that has not trained yet has 0. Only models
travel. h_k is of parameters alone; BatchNorm's statistics have none.
"""

from __future__ import annotations

from torch import nn

from shared.exchange.records.tensors import Sharing
from shared.learning.methods import terms
from shared.learning.methods.contract import MODEL, Array, Groups, Local, Method, Part, Tensors

TILT = "tilt"
TOTAL = "total-tilt"


class FedDyn(terms.FedDyn, Method):
    """The method that this module describes."""

    name = "feddyn"

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return the groups: h_k stays at the site, H at the aggregator."""
        return Groups(at_site={TILT: sharing.parameters}, at_aggregator={TOTAL: sharing.parameters})

    def correction(self, local: Local) -> Tensors:
        """Return −h_k + α (x − w)."""
        h_k, alpha, moved = local.kept[TILT], self._alpha(local), local.moved()
        return {name: -h_k[name] - alpha * moved[name] for name in h_k}

    def finish(self, local: Local) -> None:
        """Update h_k."""
        h_k, alpha, moved = local.kept[TILT], self._alpha(local), local.moved_as_sent()
        local.kept[TILT] = {name: h_k[name] + alpha * moved[name] for name in h_k}

    def _alpha(self, local: Local) -> float:
        return float(self.options.alpha / self.size(local.images))

    def combine(self, part: Part) -> dict[str, Array]:
        """Return H and w, (n,) float64 each."""
        w, mean, alpha = part.before(), part.mean(), self.options.alpha
        total = part.before(TOTAL) - alpha * part.accepted * (mean - w)
        return {TOTAL: total, MODEL: mean - total / (alpha * part.agreed)}
