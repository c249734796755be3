"""Deep ensembles (Lakshminarayanan et al. 2017): several networks from different initial weights, trained side by side.

    site        loss = Σ_i CE(member_i): each member learns as if it were alone
    aggregator  each member as the base method has it
    use         p = mean over members of their probabilities
                uncertainty = entropy of p

With ``batches: own`` the members learn one after the other, an epoch each, from batches and augmented copies of their
own, as networks do that are trained apart.

All members travel, so a round's messages are as many times as large. Published weights are the beginning of every
member's encoder: what is drawn for each member is the rest of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from shared.learning.methods import terms
from shared.learning.methods.contract import Over
from shared.learning.models.ensembles import SideBySide
from shared.learning.objectives import Ensemble, Objective


class DeepEnsembles(terms.DeepEnsembles, Over):
    """The method that this module describes."""

    name = "deep_ensembles"

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the members."""
        return SideBySide([build(number) for number in range(self.options.members)])

    def phases(self, network: nn.Module, epochs: int) -> list[list[nn.Parameter]]:
        """Return all members at once, or each in its turn."""
        if self.options.batches == "shared":
            return super().phases(network, epochs)
        return [list(member.parameters()) for member in cast(SideBySide, network).members] * epochs

    def objective(self, round_no: int, rounds: int) -> Objective:
        """Return the sum over members."""
        return Ensemble(super().objective(round_no, rounds))
