"""SCAFFOLD (Karimireddy et al. 2020, option II): every step is corrected by where the site drifts, and where all do.

    site        x ← x − η (g − c_k + c)                     in each of K steps
                c_k⁺ = c_k − c + (w − x) / (K η)
                sends x and c_k⁺ − c_k
    aggregator  w ← w + η_g · mean(x − w)
                C ← C + Σ_{k in S} (c_k⁺ − c_k)             that is Σ c_k over all N sites that have agreed
                c ← C / N

With ``weighted``, w_k = n_k / n̄, as in the code released with FedDC (Gao et al. 2022), which makes Σ n_k f_k small:

    site        x ← x − η (g − c_k + c / w_k); c_k⁺ as above; sends x and w_k (c_k⁺ − c_k)

While N stays the same, the last two are the paper's c ← c + |S| / N · mean(c_k⁺ − c_k); a site that joins later brings
its c_k = 0, and c is the mean of all c_k again. K η is the sum of the step sizes really taken: with momentum or a
schedule it is another than K times the rate. Momentum is of one round, or past rounds' steps would count as this one's.
Control variates are of parameters alone; BatchNorm's statistics have none.

A control variate of any size would go to all sites, and stay in C for ever. But c_k⁺ − c_k + c is (w − x) / (K η), and
K η is no less than one step of the round's rate η. So of each number |c_k⁺ − c_k + c| ≤ |w − x| / η, or w_k times that
where sites are weighted, or the site has not sent what it computed. Whoever lies must then send a model that is as far
off, and which the tolerance check sees.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from shared.exchange.records.tensors import Sharing
from shared.learning.methods import terms
from shared.learning.methods.contract import MODEL, Array, Groups, Local, Method, Part, Sent, Tensors

CONTROL = "control"
TOTAL = "total-control"
ROUNDING, OF_WIDEST = 1e-3, 1e-5
"""What is left to float32 where terms cancel each other: of 1 and c, and of the stretch's widest bound."""


class Scaffold(terms.Scaffold, Method):
    """The method that this module describes."""

    name = "scaffold"
    needs_sgd = True

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return the groups: c comes, the change of c_k leaves, c_k stays; C is the aggregator's."""
        control = {CONTROL: sharing.parameters}
        return Groups(to_site=control, trained=control, at_site=control, at_aggregator={TOTAL: sharing.parameters})

    def correction(self, local: Local) -> Tensors:
        """Return c / w_k − c_k."""
        c, c_k, w_k = local.state[CONTROL], local.kept[CONTROL], self.size(local.images)
        return {name: c[name] / w_k - c_k[name] for name in c}

    def finish(self, local: Local) -> None:
        """Compute c_k⁺, and how it changed, times w_k."""
        c, c_k, moved = local.state[CONTROL], local.kept[CONTROL], local.moved()
        w_k, taken_off = self.size(local.images), self.taken_off(local.images)
        local.kept[CONTROL] = {name: c_k[name] - taken_off * c[name] + moved[name] / local.step_sizes for name in c}
        local.sent[CONTROL] = {name: w_k * (local.kept[CONTROL][name] - c_k[name]) for name in c}

    def taken_off(self, images: int) -> float:
        """Return how much of c is taken off c_k at a site of so many images: all of it, with weights too."""
        return 1.0

    def implausible(self, sent: Sent) -> str | None:
        """Return whether |d_k + c| exceeds |w − x| / η somewhere, beyond what rounding can do; both by w_k."""
        w_k = self.size(sent.images)
        c, bound = w_k * self.taken_off(sent.images) * sent.before(CONTROL), w_k * sent.moved() / sent.rate
        slack = ROUNDING * (1 + np.abs(c)) + OF_WIDEST * bound.max(initial=0)
        is_possible = np.abs(sent.sent(CONTROL) + c) <= (1 + ROUNDING) * bound + slack
        return None if is_possible.all() else CONTROL

    def combine(self, part: Part) -> dict[str, Array]:
        """Return w, C and c, (n,) float64 each."""
        w = part.before()
        return {MODEL: w + self.options.server_rate * (part.mean() - w), **self.controls(part)}

    def controls(self, part: Part) -> dict[str, Array]:
        """Return C and c, (n,) float64 each."""
        total = part.before(TOTAL) + part.accepted * part.mean(CONTROL)
        return {TOTAL: total, CONTROL: total / part.agreed}
