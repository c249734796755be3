"""A classifier that sees an encoder's features at each position, and not their mean.

Source: Lo et al. 2021, the released code's passage from VGG-19's last pooling to a class: dropout 0.5, dense 16 with
ReLU at each position, BatchNorm, dropout 0.5, flatten, dense. There one sigmoid says the second class; here each class
has a logit, and the sigmoid of the difference of two is their softmax.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from shared.learning.models import Levels
from shared.learning.models.encoders import Encoder, build_encoder
from shared.learning.models.grading_network import EncoderAndHead

_WIDTH = 16
_DROPOUT = 0.5


class PositionedHead(EncoderAndHead):
    """An encoder, then the released layers.

    The head's weights are random and decided by torch's global generator alone.

    Args:
        classes: K, >= 2.
        positions: how many the encoder's last layer has.
    """

    def __init__(self, encoder: Encoder, classes: int, positions: int) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            dropout=nn.Dropout(_DROPOUT),
            dense=nn.Conv2d(encoder.width, _WIDTH, kernel_size=1),  # one dense layer, the same at each position
            relu=nn.ReLU(),
            norm=nn.BatchNorm2d(_WIDTH),
            drop=nn.Dropout(_DROPOUT),
            flatten=nn.Flatten(),
            classify=nn.Linear(_WIDTH * positions, classes),
        )
        super().__init__(encoder, nn.Sequential(layers), classes)

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head sees: (B, 3, S, S) -> (B, encoder.width, h, w)."""
        return self.encoder.positions(inputs)


def positions_of(encoder: str, side: int, levels: Levels) -> int:
    """Return how many positions an encoder's last layer has for images of so many pixels; no number is computed.

    Raises:
        ConfigurationError: as for ``build_encoder``.
    """
    with torch.device("meta"):
        rows, columns = build_encoder(encoder, side, levels).positions(torch.empty(1, 3, side, side)).shape[2:]
    return rows * columns
