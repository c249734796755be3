"""A classifier with layers of its own behind an encoder, which is usually a published one and frozen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from shared.learning.models.encoders import Encoder
from shared.learning.models.grading_network import EncoderAndHead, OwnHead


class LayeredHead(EncoderAndHead):
    """An encoder, then linear layers with ReLU and dropout between them.

    The head's weights are random and decided by torch's global generator alone.

    Args:
        classes: K, >= 2.
        hidden: the widths of the layers before the last.
        dropout: probability in [0, 1) after each of these.
        is_own: whether the classes are a site's own.
    """

    def __init__(
        self, encoder: Encoder, classes: int, hidden: Sequence[int], dropout: float, *, is_own: bool = False
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = encoder.width
        for number, width in enumerate(hidden, 1):
            layers[f"hidden{number}"] = nn.Linear(before, width)
            layers[f"relu{number}"] = nn.ReLU()
            layers[f"dropout{number}"] = nn.Dropout(dropout)
            before = width
        layers["classify"] = nn.Linear(before, classes)
        super().__init__(encoder, OwnHead(layers) if is_own else nn.Sequential(layers), classes)
