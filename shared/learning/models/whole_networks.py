"""Networks of torchvision, timm and plug-ins by name, without a classifier: what they yield are the features.

Nothing is ever fetched: networks come with random weights, and published ones from a file (``weights_file.py``).
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ConfigurationError
from shared.learning.models import Levels
from shared.learning.models.options import TIMM
from shared.learning.models.torchvision_import import import_models
from shared.learning.plugins import load, provided
from shared.software import installing

_AS_PUBLISHED = {"aux_logits": False, "init_weights": False, "transform_input": True}
"""Of the two networks whose published weights want another normalisation, which they apply themselves."""


class Renormalise(nn.Module):
    """From the images' mean and deviation to those that a network was published with; no part of its state."""

    def __init__(self, levels: Levels, published: Levels) -> None:
        super().__init__()
        (mean, std), (own_mean, own_std) = (torch.tensor(each).view(2, 3, 1, 1) for each in (levels, published))
        self.register_buffer("factor", std / own_std, persistent=False)
        self.register_buffer("shift", (mean - own_mean) / own_std, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the images as the network's weights expect them: (B, 3, H, W) -> (B, 3, H, W)."""
        return images * self.get_buffer("factor") + self.get_buffer("shift")


def whole_network(name: str, side: int, levels: Levels) -> tuple[OrderedDict[str, nn.Module], int]:
    """Return the layers of an encoder, with random weights, and how many features they yield.

    Args:
        name: a torchvision classifier's, a plug-in's, or ``timm:`` and a timm model's.
        side: of the square images, in pixels.
        levels: of the images.

    Raises:
        ConfigurationError: there is no such network here, or it takes no images of that size.
        DropfedError: torchvision cannot be imported.
    """
    make = _maker(name, side, levels)
    try:
        layers = make()
        network = nn.Sequential(layers).eval()
        with torch.no_grad():
            features = network(torch.zeros(1, 3, side, side))
    except Exception as error:  # a network's own, of whatever kind
        told = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            [f"task_options: encoder: {name} takes no images of {side} × {side} pixels ({told}); change image_size"]
        ) from error
    network.train()
    return layers, int(features.shape[1])


def published_side(name: str) -> int | None:
    """Return the side, in pixels, of the images that a network of torchvision or timm was published for.

    None of others, and where its package does not say.
    """
    if name.startswith(TIMM):
        published = _import_timm().get_pretrained_cfg(name.removeprefix(TIMM))
        return published.input_size[-1] if published else None
    models = import_models()
    if name not in models.list_models(module=models):
        return None
    return int(models.get_model_weights(name).DEFAULT.transforms().crop_size[0])


def _maker(name: str, side: int, levels: Levels) -> Callable[[], OrderedDict[str, nn.Module]]:
    if name.startswith(TIMM):
        return _timm(name, side, levels)
    build = load("encoders", name)  # a plug-in's: build(side) returns (B, 3, S, S) -> (B, features)
    if build is None:
        return _torchvision(name, side)
    if not callable(build):
        raise ConfigurationError([f"encoder: what its plug-in provides as {name} cannot be called; correct it"])
    return lambda: OrderedDict(network=build(side))


def _torchvision(name: str, side: int) -> Callable[[], OrderedDict[str, nn.Module]]:
    models = import_models()
    if name not in models.list_models(module=models):
        installed = "".join(f"{own}, " for own in sorted(provided("encoders")))
        raise ConfigurationError(
            [
                f"encoder: there is no '{name}'; take small, plain, {installed}a classifier of torchvision, as in "
                "resnet50, vit_b_16 or swin_t, or timm: and the name of a timm model."
            ]
        )
    settings: dict[str, Any] = {}
    if name in {"googlenet", "inception_v3"}:
        settings = _AS_PUBLISHED
    elif name.startswith("vit_"):
        settings = {"image_size": side}
    elif name.startswith("maxvit_"):
        settings = {"input_size": (side, side)}

    def make() -> OrderedDict[str, nn.Module]:
        try:
            network = models.get_model(name, **settings)
        except NotImplementedError:  # RegNets compute with tensors while they are built, which must have numbers
            device = torch.get_default_device()
            with torch.device("cpu"):
                network = models.get_model(name, **settings).to(device)
        _remove_classifier(network)
        return OrderedDict(network=network)

    return make


def _remove_classifier(network: nn.Module) -> None:
    """Leave of a torchvision network what comes before its first dense layer, averaged over all positions."""
    if isinstance(getattr(network, "avgpool", None), nn.AdaptiveAvgPool2d):
        network.avgpool = nn.AdaptiveAvgPool2d(1)  # VGG and AlexNet have 7 × 7 or 6 × 6 positions there
    name, classifier = [*network.named_children()][-1]
    layers = classifier.named_children() if isinstance(classifier, nn.Sequential) else [("", classifier)]
    ends = (nn.Linear, nn.Conv2d, nn.Dropout)
    kept = OrderedDict(takewhile(lambda layer: not isinstance(layer[1], ends), layers))
    if any(isinstance(layer, nn.Conv2d) for layer in classifier.modules()):  # SqueezeNet classifies before it averages
        kept["average"] = nn.AdaptiveAvgPool2d(1)
    setattr(network, name, nn.Sequential(kept))


def _timm(name: str, side: int, levels: Levels) -> Callable[[], OrderedDict[str, nn.Module]]:
    timm = _import_timm()
    model = name.removeprefix(TIMM)
    if not timm.is_model(model.partition(".")[0]) or (published := timm.get_pretrained_cfg(model)) is None:
        raise ConfigurationError(
            [f"encoder: timm {timm.__version__} has no model {model}; `timm.list_models()` in Python lists its own."]
        )
    settings = {"img_size": side} if published.fixed_input_size else {}

    def make() -> OrderedDict[str, nn.Module]:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if (own := (tuple(published.mean), tuple(published.std))) != levels:
            layers["renormalise"] = Renormalise(levels, own)
        layers["network"] = timm.create_model(model, pretrained=False, num_classes=0, **settings)
        return layers

    return make


def _import_timm() -> Any:
    """Return the package timm.

    Raises:
        ConfigurationError: it is not installed.
    """
    import_models()  # timm imports torchvision without the door's care
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ConfigurationError(
            [f"encoder: networks of timm need that package ({error}): run {installing('timm')}."]
        ) from error
