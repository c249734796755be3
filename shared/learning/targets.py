"""What labels hold, before anybody learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shared.learning.objectives import IGNORED
from shared.learning.tasks.contract import Dataset, Sample, Task


def target_counts(task: Task, samples: Sequence[Sample], classes: int) -> Tensor:
    """Return (N, classes) targets of each class in each sample: one in all, or the pixels of a segmentation."""
    counts = [
        torch.bincount(of_one[of_one != IGNORED], minlength=classes)
        for batch in task.batches(samples)
        for of_one in task.collate(batch)[1]
    ]
    return torch.stack(counts) if counts else torch.zeros(0, classes, dtype=torch.int64)


def trained_counts(task: Task, dataset: Dataset[Any]) -> list[int]:
    """Return how many targets of each class an epoch trains on: of an image that is taken twice, all twice."""
    often = [dataset.repeats.get(sample.id, 1) for batch in task.batches(dataset.train) for sample in batch]
    counts = target_counts(task, dataset.train, len(dataset.classes)) * torch.tensor(often)[:, None]  # (N, K)
    total: list[int] = counts.sum(0).tolist()
    return total


def classes_text(counts: Tensor, classes: Sequence[str]) -> str:
    """Return each class with how much there is of it: how many samples, or of segmentations which share of the pixels.

    Args:
        counts: (N, K), as ``target_counts`` gives them.
        classes: what people call the K classes.
    """
    of_each, are_pixels = counts.sum(0).tolist(), bool((counts.sum(1) > 1).any())
    whole = max(sum(of_each), 1)
    amounts = [f"{_per_cent(count / whole)} of pixels" if are_pixels else str(count) for count in of_each]
    return ", ".join(f"{called}: {amount}" for called, amount in zip(classes, amounts, strict=True))


def _per_cent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"
