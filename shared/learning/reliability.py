"""How well a model's uncertainty tells its wrong answers from its right ones, on one site's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shared.learning.compute import EXACT, Computing
from shared.learning.objectives import IGNORED, Objective, by_target
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import SampleT, Task
from shared.learning.training import answers, tame

TARGETS_PER_IMAGE = 256
"""Of an image with more targets than this, a segmentation, so many pixels are drawn."""


@dataclass(frozen=True)
class MeasuredUncertainty:
    """A model's uncertainty of some of its answers, and which of them were wrong.

    Args:
        uncertainty: (N,) float64 in [0, 1].
        wrong: (N,) bool.
        images: how many images the answers are about.
    """

    uncertainty: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    images: int


def measure_uncertainty(
    task: Task[Any, SampleT],
    model: nn.Module,
    samples: Sequence[SampleT],
    objective: Objective,
    seed: int,
    *,
    computing: Computing = EXACT,
) -> MeasuredUncertainty:
    """Measure a model's uncertainty on images as they are: in eval mode, without augmentation.

    Args:
        seed: decides which pixels of a segmentation are drawn.

    Raises:
        ValueError: there are no samples.
    """
    uncertainty: list[NDArray[np.float64]] = []
    wrong: list[NDArray[np.bool_]] = []
    for batch, logits, targets in answers(task, model, samples, computing):
        for sample, image_logits, image_targets in zip(batch, by_target(logits, targets), targets, strict=True):
            of_targets = image_logits.flatten(0, image_targets.ndim - 1) if image_targets.ndim else image_logits[None]
            truth = image_targets.reshape(-1)  # (P,)
            drawn = draw_targets(truth.numpy(), seed_for(seed, "targets", sample.id))
            flat = tame(of_targets[drawn]).double()
            uncertainty.append(objective.uncertainty(flat).numpy())
            wrong.append((objective.probabilities(flat).argmax(dim=1) != truth[drawn]).numpy())
    if not uncertainty:
        raise ValueError("there are no images to look at")
    return MeasuredUncertainty(np.concatenate(uncertainty), np.concatenate(wrong), len(samples))


def image_uncertainty(
    task: Task[Any, SampleT],
    model: nn.Module,
    samples: Sequence[SampleT],
    objective: Objective,
    computing: Computing = EXACT,
) -> NDArray[np.float64]:
    """Return a model's uncertainty of each image as it is, the mean over its targets: (N,) float64 in [0, 1]."""
    found: list[float] = []
    for _, logits, targets in answers(task, model, samples, computing):
        found += uncertainty_of_answers(objective, logits, targets)
    return np.array(found)


def uncertainty_of_answers(objective: Objective, logits: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Return the uncertainty of each image of a batch, the mean over its targets: B floats in [0, 1].

    Args:
        logits, targets: (B, K, ...) and (B, ...), see ``answers``.
    """
    return [
        objective.uncertainty(tame(of_image[image_targets != IGNORED]).double()).mean().item()  # (P, K), or (1, K)
        for of_image, image_targets in zip(by_target(logits, targets), targets, strict=True)
    ]


def draw_targets(targets: NDArray[np.int64], seed: int, most: int = TARGETS_PER_IMAGE) -> torch.Tensor:
    """Return the indices of the targets to look at: all that count, or ``most`` of them, in order.

    Args:
        targets: (P,) classes, or ``IGNORED``.
    """
    counts = np.flatnonzero(targets != IGNORED)
    if len(counts) > most:
        counts = np.sort(np.random.default_rng(seed).choice(counts, most, replace=False))
    return torch.from_numpy(counts)
