"""FedUAA (Wang et al. 2023): evidence at the site, and the site's own uncertainty as its weight.

    site        e = softplus(logits), u = K / Σ(e + 1); loss: Eq. 5 to 8
                θ_k = argmax of Youden's J over thresholds of "u ≥ θ, so the prediction is wrong", with the received
                model, before it is trained (Algorithm 1)
    aggregator  w ← Σ_{k in S} softmax(θ)_k x_k (protocol 7.2)    over all that travels: neither BatchNorm nor the
                task's own part (protocol 7.1)

How many images a site has does not matter. No temperature: with θ in (0, 1] no site weighs more than e times another.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.learning.methods import terms
from shared.learning.methods.contract import Contribution
from shared.learning.methods.fedbn import FedBN
from shared.learning.uncertainty import reliability_weights


class FedUAA(terms.FedUAA, FedBN):
    """The method that this module describes."""

    name = "feduaa"

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        """Return softmax(θ) over the accepted sites.

        Raises:
            ValueError: a site has no θ, or one outside [0, 1].
        """
        return reliability_weights({site: contribution.theta for site, contribution in accepted.items()})
