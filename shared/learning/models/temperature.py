"""A network whose logits are divided by a temperature, which is linear in the features of what it looks at."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from shared.learning.tasks.contract import Network

LOWEST, HIGHEST = 0.1, 10.0
"""No temperature is outside of these."""


class Temperature(nn.Module):
    """T = 1 + (features, 1) · coefficients, within ``LOWEST`` and ``HIGHEST``; 1 as long as these are 0.

    Args:
        width: D, how many features there are.
    """

    coefficients: Tensor
    """(D + 1,); no gradient moves them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("coefficients", torch.zeros(width + 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the temperature of each image: (B, D, ...) -> (B, 1, ...)."""
        slopes, shift = self.coefficients[:-1], self.coefficients[-1]
        linear: Tensor = torch.tensordot(features, slopes, dims=([1], [0])) + shift  # (B, D, ...) -> (B, ...)
        return (1 + linear).clamp(LOWEST, HIGHEST).unsqueeze(1)


class Tempered(nn.Module):
    """A network and its temperature.

    Args:
        network: a ``Network`` with one head.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.classes = cast(Network, network).classes
        self.network = network
        (head,) = self.heads
        width = next(head.parameters()).shape[1]  # (out, D, ...) of its first layer
        self.temperature = Temperature(width)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What turns features into logits, before the temperature."""
        return tuple(cast(Network, self.network).heads)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits over T: (B, K, ...)."""
        features = self.features(inputs)
        tempered: Tensor = self.heads[0](features) / self.temperature(features)
        return tempered

    def features(self, inputs: Tensor) -> Tensor:
        """Return what head and temperature see: (B, D, ...)."""
        return cast(Network, self.network).features(inputs)


def best_temperature(logits: Tensor, targets: Tensor) -> float:
    """Return the T in [``LOWEST``, ``HIGHEST``] that minimises the negative log-likelihood of softmax(logits / T).

    It is convex in 1 / T, so that its slope is 0 in one place, and every step halves where that may be.

    Args:
        logits: (N, K), N >= 1.
        targets: (N,) int64 classes.
    """
    logits = logits.double()
    of_target = logits.gather(1, targets[:, None]).squeeze(1)  # (N,)
    low, high = 1 / HIGHEST, 1 / LOWEST
    while high - low > 1e-9:
        middle = (low + high) / 2
        expected = ((middle * logits).softmax(dim=1) * logits).sum(dim=1)  # (N, K) -> (N,)
        if (expected - of_target).sum() > 0:
            high = middle
        else:
            low = middle
    return 2 / (low + high)
