"""The network that turns a time series into features: three convolutions in a row.

Source: Zhang et al., FedEE: a 1-D CNN of three layers with 16, 32 and 64 channels for the activities of PAMAP2, an exit
behind each. There the head stands on all positions of the last layer, which is nearly all of its 950,000 parameters;
here on their mean, as in the encoders of images, so that a window may be of any length.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from shared.learning.models.encoders import Encoder

_WIDTHS = (16, 32, 64)
_KERNEL = 5


def build_signal_encoder(channels: int) -> Encoder:
    """Return an encoder with random weights, which torch's global generator alone decides: (B, channels, T) -> (B, 64).

    Three times convolution over five moments, BatchNorm, ReLU and max-pool by two.
    """
    layers: dict[str, nn.Module] = {}
    exits: dict[str, int] = {}
    for stage, (above, width) in enumerate(zip((channels, *_WIDTHS), _WIDTHS, strict=False), start=1):
        layers[f"stage{stage}"] = nn.Sequential(
            OrderedDict(
                conv=nn.Conv1d(above, width, _KERNEL, padding=_KERNEL // 2, bias=False),  # the BatchNorm has a bias
                norm=nn.BatchNorm1d(width),
                relu=nn.ReLU(),
                pool=nn.MaxPool1d(2),
            )
        )
        exits[f"stage{stage}.pool"] = width
    return Encoder(layers, _WIDTHS[-1], exits)
