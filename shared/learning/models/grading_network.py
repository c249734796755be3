"""The network that grades an image, or a time series: an encoder, and a head with one logit per grade."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, TypeVar

from torch import Tensor, nn

from shared.learning.models.encoders import Encoder, build_encoder
from shared.learning.models.lora import add_low_rank
from shared.learning.models.options import Train, Weights, WeightsFile

HeadName = Literal["released", "linear"]
HIDDEN = 512


class OwnHead(nn.Sequential):
    """A head that stays at each site, because its classes are the site's own."""


class EncoderAndHead(nn.Module):
    """A network of one encoder and one head.

    Args:
        head: from features to K logits.
    """

    def __init__(self, encoder: Encoder, head: nn.Module, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.encoder = encoder
        self.head = head

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """What turns features into logits."""
        return (self.head,)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits: (B, C, ...) -> (B, K)."""
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head sees: (B, C, ...) -> (B, encoder.width)."""
        features: Tensor = self.encoder(inputs)
        return features


class GradingNetwork(EncoderAndHead):
    """Encoder and head.

    Weights are random and decided by torch's global generator alone: the encoder's first, then the head's.

    Args:
        encoder: one of ``ENCODERS`` by its name, or one that is made already.
        grades: how many grades there are, >= 2.
        head: ``released`` is that of FedUAA's published code: linear to 512, BatchNorm, ReLU, linear to the grades;
            while training it needs batches of two images or more. ``linear`` is the paper's one linear layer.

    Raises:
        ConfigurationError: there is no such encoder.
        DropfedError: torchvision cannot be imported.
    """

    def __init__(self, encoder: str | Encoder, grades: int, head: HeadName = "released") -> None:
        encoder = build_encoder(encoder) if isinstance(encoder, str) else encoder
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        width = encoder.width
        if head == "released":
            layers["hidden"] = nn.Linear(width, HIDDEN)
            layers["norm"] = nn.BatchNorm1d(HIDDEN)
            layers["relu"] = nn.ReLU()
            width = HIDDEN
        layers["classify"] = nn.Linear(width, grades)
        super().__init__(encoder, nn.Sequential(layers), grades)


class Projected(EncoderAndHead):
    """An encoder, a projection of its features by two layers, and one layer on that (Li et al. 2021, MOON's code).

    The weights of all three layers are random and decided by torch's global generator alone.

    Args:
        network: whose encoder it is.
        width: of the projection.
    """

    def __init__(self, network: EncoderAndHead, width: int) -> None:
        last = nn.Linear(width, network.classes)
        is_own = isinstance(network.head, OwnHead)
        super().__init__(network.encoder, OwnHead(OrderedDict(classify=last)) if is_own else last, network.classes)
        features = network.encoder.width
        self.projection = nn.Sequential(
            OrderedDict(first=nn.Linear(features, features), relu=nn.ReLU(), second=nn.Linear(features, width))
        )

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the head sees: (B, C, ...) -> (B, width)."""
        projected: Tensor = self.projection(self.encoder(inputs))
        return projected


NetworkT = TypeVar("NetworkT", bound=EncoderAndHead)


def learning(network: NetworkT, train: Train, weights: Weights = "random") -> NetworkT:
    """Freeze of a network what a run does not train, and add the low-rank updates that it trains instead.

    Args:
        weights: what the encoder will hold in the beginning.

    Returns:
        The network, changed in place; torch's global generator decides what was drawn for it.

    Raises:
        ConfigurationError: the encoder has no layer for such updates, as the run wants them.
    """
    if train != "all":
        network.encoder.freeze()
        network.encoder.is_at_sites = isinstance(weights, WeightsFile) and weights.at_sites
        if train != "head":
            add_low_rank(network.encoder, train.lora.rank, train.lora.on)
    return network
