"""Networks whose members answer together: several networks side by side, and one network asked several times."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from shared.learning.tasks.contract import Network


class SideBySide(nn.Module):
    """Networks of one task that know nothing of each other.

    Args:
        members: one or more, each a ``Network``.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.classes = self._networks[0].classes

    @property
    def _networks(self) -> list[Network]:
        return [cast(Network, member) for member in self.members]

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """Every member's; each sees its own member's features."""
        return tuple(head for member in self._networks for head in member.heads)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (B, M, K, ...); in training of those members alone that learn now."""
        learning = [member for member in self.members if any(each.requires_grad for each in member.parameters())]
        asked = learning if self.training and learning else list(self.members)
        return torch.stack([member(inputs) for member in asked], dim=1)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the members' features, one after the other: (B, M · D, ...)."""
        return torch.cat([member.features(inputs) for member in self._networks], dim=1)


class DropoutPasses(nn.Module):
    """A network that is trained as it is, and answers several times with different values dropped out.

    What pass i drops of an image is drawn from i and the image's own numbers, so that no answer depends on what else is
    in the batch. Nothing but ``nn.Dropout`` acts otherwise than in evaluation.

    Args:
        network: a ``Network`` with dropout.
        passes: M, how often it is asked.
        of_image: False: it is drawn from i alone, the same for every image of a size; a pass is one thinned network.
    """

    def __init__(self, network: nn.Module, passes: int, *, of_image: bool = True) -> None:
        super().__init__()
        self.classes = cast(Network, network).classes
        self.network = network
        self.passes = passes
        self._of_image = of_image
        self._drawing: list[torch.Generator] = []
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(self._drop)

    @property
    def heads(self) -> Sequence[nn.Module]:
        """What turns features into logits."""
        return cast(Network, self.network).heads

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, (B, passes, K, ...); in training one pass, (B, 1, K, ...)."""
        if self.training:
            return torch.stack([self.network(inputs)], dim=1)
        try:
            images = [_digest(image) for image in inputs] if self._of_image else [b""]
            return torch.stack([self._answer(inputs, number, images) for number in range(self.passes)], dim=1)
        finally:
            self._drawing = []

    def features(self, inputs: Tensor) -> Tensor:
        """Return what the heads see: (B, D, ...), in evaluation with nothing dropped."""
        return cast(Network, self.network).features(inputs)

    def _answer(self, inputs: Tensor, number: int, images: Sequence[bytes]) -> Tensor:
        seeds = [number ^ int.from_bytes(image[:7], "big") for image in images]
        self._drawing = [torch.Generator().manual_seed(seed) for seed in seeds]  # on the CPU: the same on every device
        logits: Tensor = self.network(inputs)
        return logits

    def _drop(self, dropout: nn.Dropout, given: object, values: Tensor) -> Tensor:
        """Return what a dropout lets through in a pass, instead of ``values``: (B, ...)."""
        if not self._drawing:
            return values
        drawn = [torch.rand(values.shape[1:], generator=drawing) for drawing in self._drawing]
        stays = torch.stack(drawn) >= dropout.p  # (B, ...), or (1, ...) for all images alike
        if len(values) > len(stays) > 1:  # windows of images, one image after the other
            stays = stays.repeat_interleave(len(values) // len(stays), dim=0)
        return values * (stays / (1 - dropout.p)).to(values)


def _digest(image: Tensor) -> bytes:
    return hashlib.sha256(image.detach().float().cpu().contiguous().numpy().tobytes()).digest()


def apart(network: nn.Module) -> Sequence[nn.Module]:
    """Return a network's members, which know nothing of each other, or itself."""
    return list(network.members) if isinstance(network, SideBySide) else [network]


def answers_of(network: nn.Module) -> int:
    """Return how often a network answers one input: once, or with every member, or in every pass."""
    if isinstance(network, SideBySide):
        return len(network.members)
    return network.passes if isinstance(network, DropoutPasses) else 1


def drops_out(network: nn.Module) -> bool:
    """Return whether a network has a dropout that drops anything."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in network.modules())


def add_dropout(layers: nn.Sequential, rate: float) -> None:
    """Put a dropout before the last of some layers; no tensor's name changes."""
    name, last = list(layers.named_children())[-1]
    delattr(layers, name)
    layers.add_module("dropout", nn.Dropout(rate))
    layers.add_module(name, last)
