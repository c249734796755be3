"""A classifier on features that do not learn: a published encoder, frozen, and layers of its own behind it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from shared.learning.models.encoders import build_encoder
from shared.learning.models.grading_network import EncoderAndHead


class FrozenFeatures(EncoderAndHead):
    """A frozen encoder without BatchNorm, then linear layers with ReLU and dropout between them.

    Weights are random and decided by torch's global generator alone: the encoder's first, then the head's.

    Args:
        encoder_name: one of ``encoders.WITHOUT_BATCH_NORM``.
        classes: K, >= 2.
        hidden: the widths of the layers before the last.
        dropout: probability in [0, 1) after each of these.

    Raises:
        ConfigurationError: there is no such encoder.
        DropfedError: torchvision cannot be imported.
    """

    def __init__(self, encoder_name: str, classes: int, hidden: Sequence[int], dropout: float) -> None:
        encoder = build_encoder(encoder_name).requires_grad_(False)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = encoder.width
        for number, width in enumerate(hidden, 1):
            layers[f"hidden{number}"] = nn.Linear(before, width)
            layers[f"relu{number}"] = nn.ReLU()
            layers[f"dropout{number}"] = nn.Dropout(dropout)
            before = width
        layers["classify"] = nn.Linear(before, classes)
        super().__init__(encoder, nn.Sequential(layers), classes)
