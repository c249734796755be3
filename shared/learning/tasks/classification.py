"""What the tasks have in common that name one class for each image."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from shared.learning.batches import even_parts
from shared.learning.data.augmentation import Augmentation, augment_photograph
from shared.learning.data.graded_images import GradedImage
from shared.learning.metrics import Score, grading_auroc, grading_scores
from shared.learning.models import AS_READ, IMAGENET, Levels
from shared.learning.objectives import Objective
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import REFER, Dataset, SampleT, Scoring
from shared.learning.tasks.inputs import Input, listed
from shared.learning.tasks.terms import Options

_EVALUATION_BATCH = 32

ImageT = TypeVar("ImageT", bound=GradedImage)


class OneClassEach:
    """The part of ``contract.Task`` that is the same whatever has a class: batches, and scores."""

    labels_pixels = False
    tolerance_scores = ("balanced_accuracy",)
    main_scores = ("auroc", "balanced_accuracy", "kappa", "accuracy", "calibration_error")

    def batches(self, samples: Sequence[SampleT]) -> list[Sequence[SampleT]]:
        return [*even_parts(list(samples), _EVALUATION_BATCH)]

    def scoring(self, objective: Objective) -> ClassScoring:
        return ClassScoring(objective)


class Classification(OneClassEach):
    """The part of ``contract.Task`` that tasks of images share: from an image of three channels to scores.

    Attributes:
        levels: taken off an image and divided by.
        channels: what those of an image are.
        made: how a file becomes an image, in words.
    """

    advice = REFER
    levels: Levels = IMAGENET
    channels: tuple[str, ...] = ("red", "green", "blue")
    made = "an image is scaled into the middle of a black square"

    def describe_input(self, options: Options) -> Input:
        mean, std = self.levels
        ends = [(level - of_mean) / of_std for level in (0, 1) for of_mean, of_std in zip(mean, std, strict=True)]
        less = "" if self.levels == AS_READ else f" less {listed(mean)}, over {listed(std)}"
        return Input(self.channels, f"{self.made}; its levels from 0 to 1{less}", min(ends), max(ends))

    def vary(self, sample: ImageT, augmentation: Augmentation, seed: int) -> ImageT:
        return replace(sample, image=augment_photograph(sample.image, augmentation, seed))

    def collate(self, samples: Sequence[GradedImage]) -> tuple[Tensor, Tensor]:
        return collate_levels(samples, *self.levels)


def collate_levels(
    samples: Sequence[GradedImage], of_mean: Sequence[float], of_std: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return one batch: (B, 3, S, S) float32 and (B,) int64.

    Args:
        of_mean, of_std: of each channel on the range 0 to 1, taken off and divided by.
    """
    levels = torch.from_numpy(np.stack([sample.image for sample in samples]))  # (B, S, S, 3) uint8
    # Row by row, channels repeated along it: with three numbers at a time it takes five times as long.
    rows, width = levels.float().flatten(2).div_(255), levels.shape[2]  # (B, S, S, 3) -> (B, S, 3 S)
    mean, std = torch.tensor(of_mean).repeat(width), torch.tensor(of_std).repeat(width)
    images = rows.sub_(mean).div_(std).view(levels.shape)
    return images.movedim(3, 1), torch.tensor([sample.grade for sample in samples])  # (B, S, S, 3) -> (B, 3, S, S)


class ClassScoring(Scoring[tuple[Tensor, Tensor]]):
    """Scores all images of a split together."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def look(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return logits.double().cpu(), targets.cpu()

    def scores(self, looks: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Score]:
        logits, grades = _together(looks)
        return grading_scores(
            grades.numpy(),
            self._objective.probabilities(logits).numpy(),
            self._objective.uncertainty(logits).numpy(),
            logits.softmax(dim=1).numpy() if logits.ndim == 2 else None,
        )

    def score(self, looks: Sequence[tuple[Tensor, Tensor]], name: str) -> float | None:
        if name != "auroc":
            return super().score(looks, name)
        logits, grades = _together(looks)
        return grading_auroc(grades.numpy(), self._objective.probabilities(logits).numpy())


def _together(looks: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return (N, K) logits, or (N, M, K), for members have none in common; and (N,) grades."""
    logits, grades = zip(*looks, strict=True)
    return torch.cat(logits), torch.cat(grades)


def balancing(samples: Sequence[GradedImage]) -> dict[str, int]:
    """Return how often each image is taken so that every class is seen about as often as the largest.

    Returns:
        By id, only where it is more than once: the largest class's size over the image's own, rounded.
    """
    of_class = Counter(sample.grade for sample in samples)
    largest = max(of_class.values(), default=0)
    often = {grade: round(largest / count) for grade, count in of_class.items()}
    return {sample.id: often[sample.grade] for sample in samples if often[sample.grade] > 1}


def drawing(samples: Sequence[GradedImage], seed: int) -> dict[str, int]:
    """Return how often each image is taken so that every class is seen exactly as often as the largest.

    Source: Lo et al. 2021, random upsampling; of 226 and 151 images, 75 of the 151 are taken twice.

    Args:
        seed: draws those of a class that are taken once more than its others.

    Returns:
        By id, only where it is more than once.
    """
    of_class: dict[int, list[str]] = defaultdict(list)
    for sample in samples:
        of_class[sample.grade].append(sample.id)
    largest = max(map(len, of_class.values()), default=0)
    often: dict[str, int] = {}
    for images in of_class.values():
        times, more = divmod(largest, len(images))
        drawn = sorted(images, key=lambda image: seed_for(seed, "balance", image))
        often |= {image: times + (place < more) for place, image in enumerate(drawn)}
    return {image: times for image, times in often.items() if times > 1}


def balanced(dataset: Dataset[Any], options: Options, seed: int) -> Dataset[Any]:
    """Return a dataset whose classes are equal, where a run draws images to make them so.

    Args:
        seed: of the run.
    """
    return replace(dataset, repeats=drawing(dataset.train, seed)) if options.draws_to_balance else dataset
