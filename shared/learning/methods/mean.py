"""The plain mean of Lo et al. 2021: every accepted site counts the same.

    w ← (1/|S|) Σ_{k in S} x_k        S: sites whose score on the held-out set exceeds the tolerance

All parameters and the BatchNorm running statistics travel. BatchNorm's step counter does not: it is not a
quantity that can be averaged, and with a fixed momentum nothing reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared.exchange.records import TensorList, TensorShape

name = "mean"


def shared_tensors(model: nn.Module) -> TensorList:
    """Every tensor of the state but BatchNorm's step counters, which are found by module type."""
    counters = {
        f"{path}.num_batches_tracked".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm)
    }
    shapes = {
        key: TensorShape(dtype="F32", shape=list(value.shape))
        for key, value in model.state_dict().items()
        if key not in counters
    }
    return TensorList(tensors=shapes)


def weights(accepted: Sequence[str]) -> dict[str, float]:
    """1/|S| for each of the accepted sites S."""
    return {site: 1 / len(accepted) for site in accepted}
