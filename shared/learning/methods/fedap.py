"""FedAP (Lu et al. 2022): FedBN in which each site gets a mean of its own, of those sites most that see alike.

    site        once, with a model in eval mode that is the same at all, for each BatchNorm l outside the head:
                m_kl, s_kl ← mean and standard deviation, by channel, of its inputs over all training images
    aggregator  d_ij = Σ_l √(‖m_il − m_jl‖² + ‖s_il − s_jl‖²)
                W_ii = 1/2; W_ij ∝ 1 / d_ij for j ≠ i; Σ_j W_ij = 1
                w_i ← Σ_j W_ij x_j for each site i in S; a site that is not gets Σ_{k in S} (n_k / n) x_k, as in FedBN

With ``common_model`` a site measures with the first model that it receives, before anything is done with it. In round 1
that is the same at all sites, BatchNorm too. In runs that are older than this choice it is the first model after
``pretrain_rounds`` of FedBN, and by then each site's BatchNorm is its own: what is measured then tells how far apart
the models are, too. What was measured is kept with the first answer that is accepted, and sent again ever after. A site
below ``minimum_count`` sends zeros: it gets the common mean, and enters no other site's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.learning.batch_norm import batch_norms
from shared.learning.methods import terms
from shared.learning.methods.contract import Array, Contribution, Groups, Local, Tensors
from shared.learning.methods.fedbn import FedBN
from shared.learning.tasks.contract import Network

STATISTICS = "statistics"
MEAN, DEVIATION = "mean", "deviation"
OWN = 0.5


class FedAP(terms.FedAP, FedBN):
    """The method that this module describes."""

    name = "fedap"

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return a mean and a deviation for each channel; zeros before they were measured."""
        vectors = {
            f"{path}/{what}": TensorShape(dtype="F32", shape=[norm.num_features])
            for path, norm in _norms(network).items()
            for what in (MEAN, DEVIATION)
        }
        statistics = {STATISTICS: TensorList(tensors=vectors)}
        return Groups(measured=statistics, at_site=statistics)

    @property
    def measures_received(self) -> bool:
        return bool(self.options.common_model)

    def measure(self, local: Local) -> None:
        """Send the statistics: measured now, if they never were, or as they are kept."""
        is_measured = any(vector.any() for vector in local.kept[STATISTICS].values())
        first = 1 if self.options.common_model else self.options.pretrain_rounds + 1
        if local.round_no >= first and not is_measured:
            local.kept[STATISTICS] = statistics(local)
        local.sent[STATISTICS] = local.kept[STATISTICS]

    def rows(self, round_no: int, accepted: Mapping[str, Contribution]) -> dict[str, dict[str, float]]:
        """Return W of those sites that reported their statistics, after the rounds of FedBN; before that nothing."""
        if round_no <= self.options.pretrain_rounds:
            return {}
        said = {site: contribution.sent(STATISTICS) for site, contribution in accepted.items()}
        told = {site: vectors for site, vectors in said.items() if any(vector.any() for vector in vectors.values())}
        return {
            site: row(site, {other: distance(told[site], told[other]) for other in told if other != site})
            for site in told
        }


def statistics(local: Local) -> Tensors:
    """Return m and s of each BatchNorm's inputs, ``PATH/mean`` and ``PATH/deviation``, float32, one number a channel.

    Every value counts alike: those of a channel at all positions of all training images.
    """
    norms = _norms(local.network)
    counts = dict.fromkeys(norms, 0)
    sums = {path: torch.zeros(2, norm.num_features, dtype=torch.float64) for path, norm in norms.items()}

    def look(path: str, inputs: Tensor) -> None:  # (B, C, ...)
        variance, mean = torch.var_mean(inputs, dim=[0, *range(2, inputs.ndim)], correction=0)  # -> (C,)
        mean, variance = mean.cpu().double(), variance.cpu().double()
        count = inputs.numel() // len(mean)
        counts[path] += count
        sums[path] += count * torch.stack([mean, variance + mean**2])

    was_training = local.network.training
    local.network.eval()
    with ExitStack() as block:
        for path, norm in norms.items():
            handle = norm.register_forward_pre_hook(lambda _, inputs, path=path: look(path, inputs[0]))
            block.callback(handle.remove)
        block.callback(local.network.train, was_training)
        block.enter_context(torch.no_grad())
        images = 0
        for inputs, _ in local.batches("train"):
            local.network(inputs)
            images += len(inputs)
    found: Tensors = {}
    for path in norms:
        may_tell = images >= local.minimum_count
        mean, square = sums[path] / counts[path] * may_tell
        found[f"{path}/{MEAN}"] = mean.float()
        found[f"{path}/{DEVIATION}"] = (square - mean**2).clamp(min=0).sqrt().float()
    return found


def distance(first: Mapping[str, Array], second: Mapping[str, Array]) -> float:
    """Return d of two sites' statistics, >= 0.

    Args:
        first: by name, (channels,) float32 each, as ``statistics`` returns them.
        second: of the other site, with the same names and shapes.
    """
    of_norms: dict[str, float] = {}
    for name in first:
        path = name.rpartition("/")[0]
        of_norms[path] = of_norms.get(path, 0.0) + math.fsum(np.square(first[name] - second[name]))
    return math.fsum(math.sqrt(squared) for squared in of_norms.values())


def row(site: str, distances: Mapping[str, float]) -> dict[str, float]:
    """Return W of one site by that of others, summing to 1: those that are no distance away share what is not its own.

    Args:
        distances: to each other site, >= 0.
    """
    if not distances:
        return {site: 1.0}
    nearest = min(distances.values())
    closeness = {other: nearest / apart if apart > nearest else 1.0 for other, apart in distances.items()}
    total = math.fsum(closeness.values())
    return {site: OWN} | {other: (1 - OWN) * near / total for other, near in closeness.items() if near}


def _norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """Return, by path, the BatchNorms outside the heads, whose lists agree at all sites, whatever their classes."""
    in_heads = {module for head in cast(Network, network).heads for module in head.modules()}
    paths = {module: path for path, module in network.named_modules()}
    return {paths[norm]: norm for norm in batch_norms(network) if norm not in in_heads}
