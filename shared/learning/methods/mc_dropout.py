"""Monte Carlo dropout (Gal and Ghahramani 2016): one network, asked several times with different values dropped out.

    site        trained once with dropout, as the base method has it
    aggregator  as the base method
    use         p = mean over passes of their probabilities, dropout on and BatchNorm as ever in evaluation
                uncertainty = entropy of p

A network without dropout gets one before its last layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from shared.errors import ConfigurationError
from shared.learning.methods import terms
from shared.learning.methods.contract import Over
from shared.learning.models.ensembles import DropoutPasses, add_dropout, drops_out
from shared.learning.objectives import Ensemble, Objective
from shared.learning.tasks.contract import Network


@dataclass(frozen=True)
class Passes(Ensemble):
    """Passes of one network: its loss is their mean, so that it is the same whether asked once or often."""

    def terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return ``LOSS`` and what it is made of, each (N,), as the mean over passes; ``logits`` is (N, M, K)."""
        return {name: term / logits.shape[1] for name, term in super().terms(logits, targets).items()}

    def image_terms(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the terms about whole images as the mean over passes; ``logits`` is (N, M, K)."""
        return {name: term / logits.shape[1] for name, term in super().image_terms(logits, targets).items()}


class McDropout(terms.McDropout, Over):
    """The method that this module describes."""

    name = "mc_dropout"

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the base's network, with dropout.

        Raises:
            ConfigurationError: it has none, and nowhere to put one.
        """
        network = super().network(build)
        if not drops_out(network):
            head = cast(Network, network).heads[-1]
            if not isinstance(head, nn.Sequential):
                raise ConfigurationError(
                    ["method: mc_dropout needs a network that drops something out; give the task a dropout above 0"]
                )
            add_dropout(head, self.options.dropout)
        return DropoutPasses(network, self.options.passes, of_image=self.options.masks == "of_image")

    def objective(self, round_no: int, rounds: int) -> Objective:
        """Return the objective as the mean over passes; training has one."""
        return Passes(super().objective(round_no, rounds))
