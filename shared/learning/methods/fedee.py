"""FedEE (Zhang et al.): early exits of one network are an ensemble, whose members' disagreement says what is uncertain.

    site        loss = Σ_i CE(exit_i) + CE(head), all weights α_i = 1 (protocol 7.4)
                exits never leave their site; the network travels as the base method has it
    aggregator  as the base method
    use         p = mean over exits and head of their probabilities
                uncertainty = entropy of p

The base is FedAvg, FedProx, FedBN or FedAP, each with or without fine-tuning (``fine_tuning_epochs``). The paper trains
with Adam, which a run asks its task for; what Adam remembers lasts from round to round here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from torch import nn

from shared.errors import ConfigurationError
from shared.learning.methods import terms
from shared.learning.methods.contract import Over
from shared.learning.models.early_exits import EarlyExits
from shared.learning.models.grading_network import GradingNetwork
from shared.learning.objectives import Ensemble, Objective


class FedEE(terms.FedEE, Over):
    """The method that this module describes."""

    name = "fedee"

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the base's network, and its exits.

        Raises:
            ConfigurationError: it has no encoder for exits to follow.
        """
        # 1. The base's network, whose encoder must have layers that an exit can follow.
        network = super().network(build)
        if not isinstance(network, GradingNetwork) or not network.encoder.exits:
            raise ConfigurationError(
                ["method: fedee puts exits into an encoder, and this network has no place for one; take another"]
            )
        # 2. Exits follow the last block of each stage, or an earlier one, as in older runs.
        if self.options.exits == "one_earlier":
            network.encoder.leave_earlier()
        return EarlyExits(network)

    def personal(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return the exits, beside what the base keeps."""
        return (*super().personal(network), cast(EarlyExits, network).exits)

    def objective(self, round_no: int, rounds: int) -> Objective:
        """Return the sum over exits and head."""
        return Ensemble(super().objective(round_no, rounds))
