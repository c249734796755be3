"""Early exits of an encoder: each stage's features have a classifier of their own, and all classifiers answer together.

Source: Zhang et al., FedEE. An exit is: average over all positions → Linear(c, h) → ReLU → Linear(h, K). c are the
channels of the layer that it follows; h_i = int((1.2^½)^(n − i) · W) for exit i of n, i from 0, where W is the number
of features of the whole encoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shared.learning.models.encoders import over_positions
from shared.learning.models.grading_network import GradingNetwork


def hidden_widths(exits: int, width: int) -> list[int]:
    """Return h_0, h_1, ... of so many exits of an encoder of so many features."""
    return [int((1.2**0.5) ** (exits - number) * width) for number in range(exits)]


class OverPositions(nn.Module):
    """The mean over all positions, of an image or of a time series."""

    def forward(self, values: Tensor) -> Tensor:
        """Average over positions: (B, c, ...) -> (B, c)."""
        return over_positions(values)


def exit_block(channels: int, hidden: int, classes: int) -> nn.Sequential:
    """Return a block: (B, channels, ...) -> (B, classes)."""
    return nn.Sequential(
        OverPositions(),
        nn.Flatten(),
        nn.Linear(channels, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class EarlyExits(nn.Module):
    """A network and the early exits of its encoder, which get random weights.

    Args:
        network: has an encoder and a head, which is the last member.
    """

    def __init__(self, network: GradingNetwork) -> None:
        super().__init__()
        self.classes = network.classes
        self.network = network
        # One exit for each layer that the encoder lets out, in the order of the forward pass: i = 0 is the earliest.
        channels = network.encoder.exits.values()
        widths = hidden_widths(len(channels), network.encoder.width)
        self.exits = nn.ModuleList(
            exit_block(each, hidden, network.classes) for each, hidden in zip(channels, widths, strict=True)
        )

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What turns the encoder's features into logits; the exits do not see these."""
        return self.network.heads

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of all exits: (B, C, ...) -> (B, M, classes)."""
        # One forward pass of the encoder; each exit answers by what it follows, and the head by the last features.
        *early, features = self.network.encoder.stages(inputs)
        members = [leave(seen) for leave, seen in zip(self.exits, early, strict=True)]
        return torch.stack([*members, self.network.head(features)], dim=1)

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head sees: (B, C, ...) -> (B, encoder.width)."""
        return self.network.features(inputs)
