"""The networks that turn an image into features: torchvision's and timm's, without their classifiers, and a tiny one.

Features are what the last layer yields, averaged over all positions. For the ResNets and EfficientNet that is the
published network up to its classifier. VGG-19's own classifier takes 7×7 positions of 512 channels instead; here its
convolutions are averaged as well, which gives 512 features and leaves its two layers of 4,096 out.

Tensors carry torchvision's names, ``layer1.0.conv1.weight``, so that its weight files fit.

Those named in ``ENCODERS`` are taken apart into their layers, which early exits can follow. Every other network is kept
whole, as ``whole_networks.py`` makes it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from shared.errors import ConfigurationError
from shared.learning.batch_norm import freeze_batch_norm
from shared.learning.models import ENCODERS, IMAGENET, WITHOUT_BATCH_NORM, Levels
from shared.learning.models.options import WeightsFile
from shared.learning.models.torchvision_import import import_models
from shared.learning.models.whole_networks import whole_network
from shared.learning.tasks.terms import Options

_WIDTHS = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "vgg19": 512, "efficientnet_b0": 1280}

_IMAGENET_URL = "https://download.pytorch.org/models/"
IMAGENET_FILES = {
    "resnet18": "resnet18-f37072fd.pth",
    "resnet34": "resnet34-b627a593.pth",
    "resnet50": "resnet50-0676ba61.pth",
    "vgg19": "vgg19-dcbb9e9d.pth",
    "efficientnet_b0": "efficientnet_b0_rwightman-7f5810bc.pth",
}
"""torchvision's ``IMAGENET1K_V1``: what the papers started from. The digits begin the file's own SHA-256."""

_TORCHVISION = "torchvision's licence is BSD 3-Clause"
_TIMM = "timm, which they come from, is under Apache 2.0"
_IMAGENET = (
    "they were trained on ImageNet-1k, whose terms allow non-commercial research and teaching; whether the weights may "
    "be used for something else is left to the user to find out"
)

_SMALL_WIDTHS = (16, 32, 64, 128)

# The layers that early exits follow (Zhang et al., FedEE), and the channels of each: the last block of each stage. The
# released code counts them from 0: 1, 3, 5 and 7 of ResNet-18; MBConv 4, 7, 10 and 14 of EfficientNet. VGG-19, which
# the paper does without: the first four of five poolings, the fifth is what the head sees. The tiny one: all stages but
# the last.
_EXITS: dict[str, dict[str, int]] = {
    "resnet18": {"layer1.1": 64, "layer2.1": 128, "layer3.1": 256, "layer4.1": 512},
    "resnet34": {"layer1.2": 64, "layer2.3": 128, "layer3.5": 256, "layer4.2": 512},
    "resnet50": {"layer1.2": 256, "layer2.3": 512, "layer3.5": 1024, "layer4.2": 2048},
    "vgg19": {"features.4": 64, "features.9": 128, "features.18": 256, "features.27": 512},
    "efficientnet_b0": {"features.3.1": 40, "features.4.2": 80, "features.5.2": 112, "features.6.3": 192},
    "plain": {},
    "small": {"stage1.pool": 16, "stage2.pool": 32, "stage3.pool": 64},
}
_RESNET_BEFORE = ("layer1.0", "layer2.0", "layer3.0", "layer4.0")
_EXITS_BEFORE = {
    "resnet18": _RESNET_BEFORE,
    "resnet34": _RESNET_BEFORE,
    "resnet50": _RESNET_BEFORE,
    "efficientnet_b0": ("features.3.0", "features.4.1", "features.5.1", "features.6.2"),
}
"""Where the exits of runs are that are older than the choice, counted from 1; of as many channels each."""
_CLASSIFIERS = ("fc.", "classifier.")


@dataclass(frozen=True)
class BaseWeights:
    """Published weights that a run's training began from.

    Args:
        sha256_begins: the digits that the file's hash was checked against.
    """

    file: str
    source: str
    sha256_begins: str
    licence: str


class Encoder(nn.Module):
    """Layers in a row, then the average over all positions, of an image or of a time series.

    Args:
        layers: by name, in order; the last yields (B, width, ...).
        width: how many features there are.
        exits: the paths of the layers that an early exit follows, in order, and the channels c of each.
        exits_before: the paths that exits of older runs follow, if they are others.

    Attributes:
        is_frozen: whether nothing in it changes.
        is_at_sites: whether each site takes what never changes of it from its own copy of the published weights.
    """

    def __init__(
        self, layers: Mapping[str, nn.Module], width: int, exits: Mapping[str, int], exits_before: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.width = width
        self.exits = dict(exits)
        self._exits_before = dict(zip(exits_before or exits, exits.values(), strict=True))
        self.is_frozen = False
        self.is_at_sites = False
        for name, layer in layers.items():
            self.add_module(name, layer)

    def begin_with(self, layer: nn.Module) -> None:
        """Put a layer without weights before all others."""
        later = dict(self.named_children())
        for name in later:
            delattr(self, name)
        for name, each in {"begin": layer, **later}.items():
            self.add_module(name, each)

    def leave_earlier(self) -> None:
        """Have early exits follow the layers that they followed in older runs."""
        self.exits = self._exits_before

    def freeze(self) -> None:
        """Have nothing in it change from now on: no weight, no statistic, and no dropout in training either."""
        self.is_frozen = True
        self.requires_grad_(False)
        freeze_batch_norm(self)
        self.eval()

    def train(self, mode: bool = True) -> Encoder:
        """Set the mode, which is evaluation's for ever once the encoder is frozen."""
        super().train(mode and not self.is_frozen)
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features of each input.

        Args:
            inputs: (B, 3, H, W), H and W at least 32, for the encoders of images; ImageNet's weights expect its mean
                and deviation, or near them.

        Returns:
            (B, width).
        """
        for values in self.stages(inputs):
            features = values  # the last; those before it are freed
        return features

    def positions(self, inputs: Tensor) -> Tensor:
        """Return what the last layer yields of images, before it is averaged: (B, 3, H, W) -> (B, width, h, w)."""
        values = inputs
        for layer in _in_a_row(self):
            values = layer(values)
        return positioned(values)

    def stages(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield what each of the layers before an exit yields, (B, c, ...), and last the features, (B, width)."""
        followed = {self.get_submodule(path) for path in self.exits}
        values = inputs
        for layer in _in_a_row(self):
            values = layer(values)
            if layer in followed:
                yield values
        yield over_positions(values)


def positioned(values: Tensor) -> Tensor:
    """Return values with their positions; those without any have one: (B, c, h, w), or (B, c) -> (B, c, 1, 1)."""
    return values if values.ndim > 2 else values[:, :, None, None]


def over_positions(values: Tensor) -> Tensor:
    """Return the mean over all positions, if there are any left: (B, c, ...) -> (B, c)."""
    if values.ndim == 2:
        return values
    return values.mean(dim=tuple(range(2, values.ndim)))


def _in_a_row(layers: nn.Module) -> Iterator[nn.Module]:
    """Yield layers in the order in which they are passed, those of a row within the row too."""
    for layer in layers.children():
        yield from _in_a_row(layer) if isinstance(layer, nn.Sequential) else (layer,)


def build_encoder(name: str, side: int = 224, levels: Levels = IMAGENET) -> Encoder:
    """Return an encoder with random weights, which torch's global generator alone decides: seed it first.

    Convolutions of those in ``ENCODERS`` start from He's normal distribution over the outgoing connections, as
    torchvision's do; every other network as its package has it.

    Args:
        name: one of ``ENCODERS``, of ``WITHOUT_BATCH_NORM``, or that of any classifier of torchvision or timm.
        side: of the images, in pixels; some networks are built for one size.
        levels: of the images; a network of timm that was published with others gets them renormalised.

    Raises:
        ConfigurationError: there is no such encoder, or it takes no images of that size.
        DropfedError: torchvision cannot be imported.
    """
    if name not in (*ENCODERS, *WITHOUT_BATCH_NORM):
        layers, width = whole_network(name, side, levels)
        return Encoder(layers, width, {})
    # Sizes without values at first: VGG-19's classifier, thrown away here, would take half a gigabyte.
    with torch.device("meta"):
        encoder = _small(name) if name in {"small", "plain"} else _torchvision(name)
    encoder.to_empty(device=torch.get_default_device())  # as any layer is; sizes alone where that is "meta"
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()  # the running statistics too
    return encoder


def load_imagenet_weights(encoder: Encoder, name: str, folders: Sequence[Path]) -> str:
    """Fill an encoder with torchvision's ImageNet weights from a file that is there already; fetch nothing.

    Args:
        encoder: what ``build_encoder(name)`` gave.
        name: the encoder's name.
        folders: where to look, in this order; torchvision's own download folder comes last.

    Returns:
        The file's SHA-256, 64 hexadecimal digits.

    Raises:
        ConfigurationError: there is no such file, its hash is not the one in its name, or its tensors do not fit.
    """
    if name not in IMAGENET_FILES:
        raise ConfigurationError(
            [f"task_options: weights: there are no ImageNet weights for the encoder '{name}'; use `weights: random`."]
        )
    file_name = IMAGENET_FILES[name]
    searched = [*folders, Path(torch.hub.get_dir()) / "checkpoints"]
    path = next((folder / file_name for folder in searched if (folder / file_name).is_file()), None)
    if path is None:
        raise ConfigurationError(
            [
                f"weights: {file_name} is in none of {', '.join(map(str, searched))}; download "
                f"{_IMAGENET_URL}{file_name} and put it into {searched[0]}, or use `weights: random`."
            ]
        )
    again = f"download {_IMAGENET_URL}{file_name} again, or use `weights: random`"
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            if not sha256.startswith(_digits(file_name)):
                raise ConfigurationError(
                    [f"weights: {path} is damaged or not what its name says, its SHA-256 is {sha256}; {again}."]
                )
            file.seek(0)
            _load(encoder, _without_classifier(file))
    except OSError as error:
        raise ConfigurationError([f"weights: {path} cannot be read ({error}); {again}."]) from error
    except (RuntimeError, TypeError, AttributeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigurationError([f"weights: {path} does not hold the tensors of {name}; {again}."]) from error
    return sha256


def base_weights(options: Options) -> BaseWeights | None:
    """Return which published weights a task's options have training begin from, if any."""
    match getattr(options, "weights", None):
        case WeightsFile() as chosen:
            return BaseWeights(chosen.file, chosen.source, chosen.sha256, chosen.licence)
        case "imagenet":
            file = IMAGENET_FILES[getattr(options, "encoder")]  # noqa: B009  (of the tasks that have one)
            licence = f"{_TIMM if 'rwightman' in file else _TORCHVISION}; {_IMAGENET}"
            return BaseWeights(file, f"{_IMAGENET_URL}{file}", _digits(file), licence)
    return None


def _torchvision(name: str) -> Encoder:
    network = getattr(import_models(), name)()
    layers = takewhile(lambda child: child[0] != "avgpool", network.named_children())
    return Encoder(OrderedDict(layers), _WIDTHS[name], _EXITS[name], _EXITS_BEFORE.get(name, ()))


def _small(name: str) -> Encoder:
    """Return an encoder of four times 3×3 convolution, BatchNorm, ReLU and max-pool, for tests and demonstrations.

    It has 97,000 parameters.

    ``plain`` has no BatchNorm, and a bias in its place.
    """
    layers: dict[str, nn.Module] = {}
    for level, (above, width) in enumerate(zip((3, *_SMALL_WIDTHS), _SMALL_WIDTHS, strict=False), start=1):
        stage: OrderedDict[str, nn.Module] = OrderedDict(
            conv=nn.Conv2d(above, width, kernel_size=3, padding=1, bias=name == "plain"),  # the BatchNorm has a bias
            norm=nn.Identity() if name == "plain" else nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
        )
        layers[f"stage{level}"] = nn.Sequential(stage)
    return Encoder(layers, _SMALL_WIDTHS[-1], _EXITS[name])


def _digits(file_name: str) -> str:
    """Return the part of its hash that a weight file is named by: ``resnet50-0676ba61.pth`` -> ``0676ba61``."""
    return file_name.removesuffix(".pth").rpartition("-")[2]


def _load(encoder: Encoder, state: Mapping[str, Tensor]) -> None:
    """Put a file's tensors into an encoder. A frozen BatchNorm has no counter of steps."""
    own = encoder.state_dict().keys()
    counters = {name for name in state if name.endswith(".num_batches_tracked") and name not in own}
    encoder.load_state_dict({name: tensor for name, tensor in state.items() if name not in counters})


def _without_classifier(file: BinaryIO) -> dict[str, Tensor]:
    """Return the tensors of a weight file, read without running any code that it may hold."""
    state: Mapping[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError("not a table of tensors")
    return {name: tensor for name, tensor in state.items() if not name.startswith(_CLASSIFIERS)}
