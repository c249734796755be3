"""FedDC (Gao et al. 2022): what a site drifts away is remembered and taken off, beside SCAFFOLD's correction.

    site        gradient + α (x − (w − h_k)) + c − c_k      of the terms α/2 · ‖x − (w − h_k)‖² + ⟨c − c_k, x⟩
                h_k ← h_k + x − w
                c_k⁺ = c_k − c + (w − x) / (K η)
                sends x and c_k⁺ − c_k
    aggregator  H ← H + Σ_{k in S} (x_k − w)                that is Σ h_k over all N sites that have agreed
                w ← mean x_k + H / N
                c as in SCAFFOLD

With ``weighted``, the default of new runs as of the released code, w_k = n_k / n̄: a site has α / w_k in the place of α
and c / w_k in that of c, and sends w_k (c_k⁺ − c_k).

A site that has not trained yet has h_k = 0. h_k, as c_k, is of parameters alone; BatchNorm's statistics have none.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from shared.exchange.records.tensors import Sharing
from shared.learning.methods import terms
from shared.learning.methods.contract import MODEL, Array, Groups, Local, Part, Tensors
from shared.learning.methods.scaffold import Scaffold

DRIFT = "drift"
TOTAL = "total-drift"


class FedDC(terms.FedDC, Scaffold):
    """The method that this module describes."""

    name = "feddc"

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return SCAFFOLD's groups; besides, h_k stays at the site, and H at the aggregator."""
        controls = super().groups(network, sharing)
        return replace(
            controls,
            at_site={**controls.at_site, DRIFT: sharing.parameters},
            at_aggregator={**controls.at_aggregator, TOTAL: sharing.parameters},
        )

    def correction(self, local: Local) -> Tensors:
        """Return α (x − (w − h_k)) + c − c_k."""
        h_k, moved, control = local.kept[DRIFT], local.moved(), super().correction(local)
        alpha = self.options.alpha / self.size(local.images)
        return {name: alpha * (h_k[name] - moved[name]) + control[name] for name in h_k}

    def taken_off(self, images: int) -> float:
        """Return how much of c is taken off c_k: as much as was added to each step."""
        return 1 / self.size(images)

    def finish(self, local: Local) -> None:
        """Compute h_k, c_k⁺, and how c_k changed."""
        super().finish(local)
        h_k, moved = local.kept[DRIFT], local.moved_as_sent()
        local.kept[DRIFT] = {name: h_k[name] - moved[name] for name in h_k}

    def combine(self, part: Part) -> dict[str, Array]:
        """Return H, w, C and c, (n,) float64 each."""
        mean = part.mean()
        total = part.before(TOTAL) + part.accepted * (mean - part.before())
        return {TOTAL: total, MODEL: mean + total / part.agreed, **self.controls(part)}
