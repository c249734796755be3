"""Multi-domain temperature scaling (Yu et al. 2022): how sure a model may be is measured at each site, and from then on
read from the image. Not for private runs: what it sends of validation images has no noise.

    site        training as FedAvg; before it, with the received model, on its validation images:
                T_k = argmin_T of the negative log-likelihood of softmax(z / T)
                sends Σ φ φᵀ and Σ φ (T_k − 1), where φ is the features of an image and a 1
    aggregator  weights as FedAvg
                β = argmin Σ_k Σ_i (β · φ_i − (T_k − 1))² + penalty · |slopes of β|²
    use         p = softmax(z / T(x)) with T(x) = 1 + β · φ(x), never outside [0.1, 10]

β is solved for every aggregate, and comes with the chosen one. A segmentation's images are pixels, of which each image
gives some. A site that may not report on so few images as it validates on adds nothing to the sums: its numbers would
else be its images' features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import fsum
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from shared.errors import ConfigurationError
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.learning.methods import terms
from shared.learning.methods.contract import Array, Contribution, Groups, Local, Tensors
from shared.learning.methods.fedavg import FedAvg
from shared.learning.models.positioned_head import PositionedHead
from shared.learning.models.temperature import Tempered, best_temperature
from shared.learning.objectives import by_target
from shared.learning.reliability import draw_targets
from shared.learning.training import tame

EQUATIONS = "equations"
TEMPERATURE = "temperature"
_LARGEST = 1e6  # of a coefficient: far beyond any that leaves T(x) within its bounds
_NOTHING = 1e-14  # of the greatest number of a column: so little is left of one that follows from those before it


class Mdt(terms.Mdt, FedAvg):
    """The method that this module describes."""

    name = "mdt"
    sends_features = True
    largest: ClassVar[Mapping[str, float]] = {EQUATIONS: 2.0**64}
    """Sums over all images of products of two features."""

    def network(self, build: Callable[[int], nn.Module]) -> nn.Module:
        """Return the task's, with T(x) = 1 until ``ready``.

        Raises:
            ConfigurationError: its head sees features at many places of an image, and answers once for all of them.
        """
        network = super().network(build)
        if isinstance(network, PositionedHead):
            raise ConfigurationError(
                ["task_options: head: mdt reads a temperature from what the head sees of an image; take head: layers"]
            )
        return Tempered(network)

    def personal(self, network: nn.Module) -> Iterable[nn.Module]:
        """Return T, which stays at the site: training neither moves it nor needs it."""
        return (cast(Tempered, network).temperature,)

    def groups(self, network: nn.Module, sharing: Sharing) -> Groups:
        """Return the groups: the normal equations leave, their solution comes with the chosen model."""
        size = cast(Tempered, network).temperature.coefficients.numel()
        vector, matrix = TensorShape(dtype="F32", shape=[size]), TensorShape(dtype="F32", shape=[size, size])
        return Groups(
            measured={EQUATIONS: TensorList(tensors={"matrix": matrix, "right": vector})},
            with_final={TEMPERATURE: TensorList(tensors={"coefficients": vector})},
        )

    def measure(self, local: Local) -> None:
        """Compute Σ φ φᵀ and Σ φ (T_k − 1), which leave."""
        features, logits, targets, images = _answers(local)
        ones = torch.ones(len(features), 1, dtype=torch.float64)
        phi = torch.cat([features, ones], dim=1)  # (N, D + 1)
        matrix, right = phi.T @ phi, phi.sum(dim=0) * (best_temperature(logits, targets) - 1)
        if images < local.minimum_count or not matrix.isfinite().all():
            matrix, right = torch.zeros_like(matrix), torch.zeros_like(right)
        local.sent[EQUATIONS] = {"matrix": matrix, "right": right}

    def settle(self, answers: Mapping[str, Contribution]) -> dict[str, Mapping[str, Array]]:
        """Return β, (D + 1,); its last number, the shift, costs nothing."""
        told = [answer.sent(EQUATIONS) for answer in answers.values()]
        matrix, right = (np.sum([each[name] for each in told], axis=0) for name in ("matrix", "right"))
        penalty = self.options.ridge * fsum(np.diag(matrix)[:-1]) / (len(matrix) - 1)
        penalised = matrix + penalty * np.diag([1.0] * (len(right) - 1) + [0.0])
        return {TEMPERATURE: {"coefficients": solve(penalised, right).clip(-_LARGEST, _LARGEST)}}

    def ready(self, network: nn.Module, state: Mapping[str, Tensors]) -> None:
        """Put β into the network's T(x)."""
        cast(Tempered, network).temperature.coefficients.copy_(state[TEMPERATURE]["coefficients"])


def solve(matrix: Array, right: Array) -> Array:
    """Return what solves linear equations: x in A x = b, (n,), 0 where they say nothing.

    By Gauss's elimination with partial pivoting. In a library of linear algebra the last digits depend on the
    processor, and ``replay`` compares them.

    Args:
        matrix: A, (n, n); a hostile site's may be anything that is finite.
        right: b, (n,).
    """
    rows, sums, solved = matrix.copy(), right.copy(), np.zeros_like(right)
    with np.errstate(over="ignore", invalid="ignore"):
        # 1. For each unknown, the equation that says most of it is taken out of those that are left.
        for at in range(len(rows)):
            most = at + int(np.abs(rows[at:, at]).argmax())
            rows[[at, most]], sums[[at, most]] = rows[[most, at]], sums[[most, at]]
            if abs(rows[at, at]) > _NOTHING * np.abs(matrix[:, at]).max():
                factors = rows[at + 1 :, at] / rows[at, at]
                rows[at + 1 :, at + 1 :] -= factors[:, None] * rows[at, at + 1 :]
                sums[at + 1 :] -= factors * sums[at]
            else:
                rows[at, at] = np.inf  # so that its x is 0
        # 2. The last one then has one unknown, and each before it one more.
        for at in reversed(range(len(rows))):
            solved[at] = sums[at] / rows[at, at]
            sums[:at] -= rows[:at, at] * solved[at]
    return solved if np.isfinite(solved).all() else np.zeros_like(right)


def _answers(local: Local) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return features (N, D), logits (N, K) and targets (N,) of a site's validation images, and the images' number.

    All are on the CPU, and float64 but for the targets.
    """
    network = cast(Tempered, local.network)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    was_training = network.training
    network.eval()
    with torch.no_grad():
        for inputs, targets in local.batches("validation"):
            features = network.features(inputs)  # (B, D, ...)
            logits = tame(network.heads[0](features))  # (B, K, ...)
            of_batch = (by_target(features, targets), by_target(logits, targets), targets)
            for seen, said, truth in zip(*(each.cpu() for each in of_batch), strict=True):
                flat = truth.reshape(-1)  # (P,), of a classification (1,)
                drawn = draw_targets(flat.numpy(), len(found))
                rows = (each.reshape(len(flat), -1)[drawn].double() for each in (seen, said))  # (P, D), (P, K)
                found.append((*rows, flat[drawn]))
    network.train(was_training)
    features, logits, targets = (torch.cat(column) for column in zip(*found, strict=True))
    return features, logits, targets, len(found)
