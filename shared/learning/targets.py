"""What labels hold, before anybody learns from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.learning.objectives import IGNORED
from shared.learning.tasks.contract import Sample, Task


def target_counts(task: Task, samples: Sequence[Sample], classes: int) -> Tensor:
    """(N, classes) how many targets of each class each sample has: one in all, or of a segmentation its pixels."""
    counts = [
        torch.bincount(of_one[of_one != IGNORED], minlength=classes)
        for batch in task.batches(samples)
        for of_one in task.collate(batch)[1]
    ]
    return torch.stack(counts) if counts else torch.zeros(0, classes, dtype=torch.int64)
