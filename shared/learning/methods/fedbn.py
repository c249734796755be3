"""FedBN (Li et al. 2021): FedAvg that leaves every BatchNorm at its site.

    w ← Σ_{k in S} (n_k / n) x_k        over all tensors but those of BatchNorm modules

A site's cameras show in the means and spreads of its features; what normalises them is the site's own. A BatchNorm is
known by its module's type: in torchvision's ResNet-50 four of them have no "bn" in their names.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared.learning.methods.contract import MethodOptions
from shared.learning.methods.fedavg import weights
from shared.learning.methods.mean import objective

__all__ = ["Options", "name", "objective", "sends_reliability", "stays", "weights"]

name = "fedbn"
sends_reliability = False
Options = MethodOptions


def stays(module: nn.Module) -> bool:
    """BatchNorm stays, with its statistics."""
    return isinstance(module, _BatchNorm)
