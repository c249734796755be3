"""Updates of low rank to a frozen network, of which one factor alone learns and travels.

    W + B A        W: (out, in), frozen
                   A: (R, in), frozen; its rows are orthonormal, drawn from the run's seed, sent once
                   B: (out, R), 0 in the beginning; what learns

Source: LoRA (Hu et al. 2021, arXiv 2106.09685); A stays as it was drawn by FFA-LoRA (Sun et al. 2024, arXiv
2403.12313). With both factors in training the mean of the products is not the product of the means. With A common to
all sites it is: Σ_k p_k (W + B_k A) = W + (Σ_k p_k B_k) A. And because A Aᵀ = 1, ‖B A‖ = ‖B‖: norms and distances of
what travels are those of the updates themselves. There is no further factor α / R: the learning rate does its work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from shared.errors import ConfigurationError

ATTENTION = "attention"
_ORIGINAL = re.compile(r"parametrizations\.(\w+)\.original$")
_IN_PROJECTION = "in_proj_weight"  # of nn.MultiheadAttention: queries, keys and values in one, and in no nn.Linear


class LowRankUpdate(nn.Module):
    """W ↦ W + B A.

    Args:
        weight: W, (out, in).
        rank: R, at most in.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(nn.init.orthogonal_(weight.new_empty(rank, weight.shape[1])), requires_grad=False)
        self.b = nn.Parameter(weight.new_zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its low-rank update: (out, in) -> (out, in)."""
        return torch.addmm(weight, self.b, self.a)


def add_low_rank(network: nn.Module, rank: int, on: Sequence[str]) -> None:
    """Give some linear layers of a network updates of low rank.

    torch's global generator alone decides A: seed it first.

    Args:
        on: ends of the layers' paths, ``attn.qkv``; or ``attention`` for all that an attention consists of.

    Raises:
        ConfigurationError: no layer is meant by one of these, or a layer has fewer inputs than the rank.
    """
    layers = dict(_linear(network))
    found: dict[str, nn.Module] = {}
    for end in on:
        chosen = {path: layer for path, layer in layers.items() if _is_meant(path, end)}
        if not chosen:
            known = sorted({".".join(path.split(".")[-2:]) for path in layers}) or ["no linear layer at all"]
            raise ConfigurationError(
                [f"task_options: train: lora: on: {end} is no linear layer of this encoder; it has {', '.join(known)}"]
            )
        found |= chosen
    for path, layer in sorted(found.items()):
        name = _weight_of(layer)
        weight: Tensor = getattr(layer, name)
        if weight.shape[1] < rank:
            raise ConfigurationError(
                [f"task_options: train: lora: rank: {path} has {weight.shape[1]} inputs; set rank to that or less"]
            )
        parametrize.register_parametrization(layer, name, LowRankUpdate(weight.detach(), rank))


def published_name(name: str) -> str | None:
    """Return what a tensor of the network's state is called without the updates; None of an update's own factor."""
    plain = _ORIGINAL.sub(r"\1", name)
    return None if "parametrizations." in plain else plain


def _linear(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers with a matrix that products are taken with, by path."""
    for path, layer in network.named_modules():
        if isinstance(layer, nn.Linear) or getattr(layer, _IN_PROJECTION, None) is not None:
            yield path, layer


def _weight_of(layer: nn.Module) -> str:
    return "weight" if isinstance(layer, nn.Linear) else _IN_PROJECTION


def _is_meant(path: str, end: str) -> bool:
    """Return whether a layer is one of an attention, or its path ends so."""
    if end == ATTENTION:  # torchvision: self_attention.out_proj, attn.qkv, attn.to_qkv; timm: attn.qkv, attn.proj
        return any("att" in part for part in path.split(".")[-2:])
    return f".{path}".endswith(f".{end}")
