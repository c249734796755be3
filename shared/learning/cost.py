"""What a model costs: numbers to keep, operations to answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from shared.learning.batch_norm import batch_norms
from shared.learning.training import device_of


@dataclass(frozen=True)
class ModelCost:
    """What a model costs wherever it is used.

    Args:
        parameters: all that an optimizer could change, frozen or not.
        with_statistics: the same and BatchNorm's running means and variances, which Keras counts too.
        flops: floating-point operations of one answer to one image; see ``flops``.
    """

    parameters: int
    with_statistics: int
    flops: int


def model_cost(model: nn.Module, image: Tensor) -> ModelCost:
    """Return what a model costs that is asked about an image (1, C, H, W), or a time series (1, C, T)."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    statistics = [each for norm in batch_norms(model) for each in (norm.running_mean, norm.running_var)]
    with_statistics = parameters + sum(each.numel() for each in statistics if each is not None)
    return ModelCost(parameters, with_statistics, flops(model, image))


def flops(model: nn.Module, image: Tensor) -> int:
    """Return the floating-point operations of one forward pass, in eval mode.

    Convolutions and products of matrices are counted, a multiplication with its addition as two operations; what costs
    next to nothing beside them (biases, norms, activations, pooling) is not.

    Args:
        image: (1, C, ...), the batch of one image or time series.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(image.to(device_of(model)))
    finally:
        model.train(was_training)
    return int(counter.get_total_flops())
