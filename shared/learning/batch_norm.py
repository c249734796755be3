"""The BatchNorms of a network, and what takes their place in private training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

_GROUPS = 32  # of a GroupNorm at most, as in Wu and He 2018, and in Opacus


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """Return every BatchNorm of a network but the frozen ones, found by its type: names tell nothing."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def buffers_kept(network: nn.Module) -> Iterator[None]:
    """Put the network's buffers back when the block ends, whatever it measured: a copy of them is small."""
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(before[name])


def replace_batch_norm(model: nn.Module) -> None:
    """Put a GroupNorm in the place of every BatchNorm, as private training requires.

    There are as many groups as Opacus would take. Weight, bias and the constant added to the variance are the
    BatchNorm's own; only the running statistics are gone. An image is normalised by itself alone, in training as in
    evaluation. Weights from a file go in before.
    """

    def group_norm(old: _BatchNorm) -> nn.Module:
        new = nn.GroupNorm(math.gcd(_GROUPS, old.num_features), old.num_features, eps=old.eps, affine=old.affine)
        new.weight, new.bias = old.weight, old.bias
        return new.train(old.training)

    _replace(model, group_norm)


class FrozenBatchNorm(nn.Module):
    """A BatchNorm that normalises by the statistics that it has, in training too, and never learns.

    Its tensors have a BatchNorm's names. There is no counter of steps.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, old: _BatchNorm) -> None:
        super().__init__()
        self.eps = old.eps
        for name in ("weight", "bias"):
            own = getattr(old, name)
            self.register_parameter(name, None if own is None else nn.Parameter(own.detach(), requires_grad=False))
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, getattr(old, name))

    def forward(self, values: Tensor) -> Tensor:
        """Return the values normalised by constants: (B, c, ...) -> (B, c, ...)."""
        return functional.batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def freeze_batch_norm(model: nn.Module) -> None:
    """Put a frozen BatchNorm in the place of every BatchNorm, with the same tensors."""
    _replace(model, FrozenBatchNorm)


def _replace(model: nn.Module, new: Callable[[_BatchNorm], nn.Module]) -> None:
    """Put another layer in the place of every BatchNorm."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
    for path, old in found:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new(old))
