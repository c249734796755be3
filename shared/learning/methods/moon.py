"""MOON (Li et al. 2021): FedAvg whose sites hold their features to the received model's, away from their own last.

    site        loss + μ · mean over images of ℓ
                ℓ = −log( exp(sim(z, z_w) / τ) / (exp(sim(z, z_w) / τ) + exp(sim(z, z_p) / τ)) )
                z, z_w, z_p: features of the model in training, of the one received, of the site's own of before;
                sim: the cosine of their angle
    aggregator  as FedAvg

With ``projection`` z is what two layers make of the features, linear and ReLU between them, and one layer makes the
logits of z, as in the released code; they take the place of the task's own head.

The model of before is the site's own after its last round that was accepted; until there is one, ℓ is left out. Both
models to compare with answer in eval mode, without gradients. Features are what the head sees, of a segmentation their
mean over all positions; nothing that stays at a site enters them. So of the model of before everything that was shared
is kept, BatchNorm's statistics too, and of its head nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.errors import ConfigurationError
from shared.exchange.records.tensors import Sharing
from shared.learning.methods import terms
from shared.learning.methods.contract import Groups, Local
from shared.learning.methods.fedavg import FedAvg
from shared.learning.models.grading_network import EncoderAndHead, Projected
from shared.learning.tasks.contract import Network

PREVIOUS = "previous"
RECEIVED = "received"


class Moon(terms.Moon, FedAvg):
    """The method that this module describes."""

    name = "moon"
    networks_beside = 2
    compares_features = True

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the task's network, or its encoder with a projection.

        Raises:
            ConfigurationError: it has no encoder.
        """
        network = super().network(build)
        if self.options.projection is None:
            return network
        if not isinstance(network, EncoderAndHead):
            raise ConfigurationError(["method_options: projection needs an encoder, and this task has none; say null"])
        return Projected(network, self.options.projection)

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return the groups: the site's own model of the round before stays."""
        return Groups(at_site={PREVIOUS: sharing.shared})

    def begin(self, local: Local) -> None:
        """Copy the two models to compare with: the received one, and the site's own of the round before."""
        if not local.is_first:
            local.beside = {RECEIVED: _at_rest(local.network), PREVIOUS: _at_rest(local.network)}
            local.beside[PREVIOUS].load_state_dict(local.kept[PREVIOUS], strict=False)

    def answer(self, local: Local, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits, (B, K), and μ · ℓ, a scalar; None in the first round of a site."""
        network = cast(Network, local.network)
        (head,) = network.heads
        features = network.features(inputs)  # (B, D, ...)
        logits: Tensor = head(features)
        if local.is_first:
            return logits, None
        with torch.no_grad():
            received, previous = (
                _averaged(cast(Network, local.beside[name]).features(inputs)) for name in (RECEIVED, PREVIOUS)
            )
        return logits, self.options.mu * contrast(
            _averaged(features), received, previous, self.options.contrast_temperature
        )

    def finish(self, local: Local) -> None:
        """Keep the present model as the one of before the next round."""
        state = local.network.state_dict()
        local.kept[PREVIOUS] = {name: state[name].detach().clone() for name in local.kept[PREVIOUS]}


def contrast(features: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """Return the mean of ℓ over a batch, a scalar: log 2 where both are equally near.

    Args:
        features: (B, D) z, with gradients.
        received: (B, D) z_w.
        previous: (B, D) z_p.
        temperature: τ > 0.
    """
    towards = functional.cosine_similarity(features, received, dim=1)  # (B,)
    away = functional.cosine_similarity(features, previous, dim=1)
    # −log(exp(a) / (exp(a) + exp(b))) = log(1 + exp(b − a))
    return functional.softplus((away - towards) / temperature).mean()


def _averaged(features: Tensor) -> Tensor:
    """Average over positions: (B, D, ...) -> (B, D)."""
    return features.flatten(2).mean(dim=2) if features.ndim > 2 else features


def _at_rest(network: nn.Module) -> nn.Module:
    """Return a copy in eval mode that no gradient moves."""
    return deepcopy(network).eval().requires_grad_(False)
