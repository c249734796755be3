"""The task my_task: round against square shapes, in grey images.

What is not said here is ``dropfed.ImageClassification``'s: an encoder and a layer behind it, labels by ``labels.csv``
or one folder each, the usual scores. Say what is different in your data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dropfed


class MyOptions(dropfed.ImageOptions):
    """What a run may choose, beside all that it may choose about any images."""

    labels: tuple[str, ...] = ("round", "square")
    encoder: str = "small"
    weights: Any = "random"
    image_size: int = 32


class MyScoring(dropfed.ClassScoring):
    """The usual scores, and one more."""

    def __init__(self, objective: dropfed.Objective) -> None:
        super().__init__(objective)
        self.objective = objective

    def scores(self, looks: Sequence[Any]) -> dict[str, dropfed.Score]:
        """Add the Brier score: the mean squared distance of the probabilities from the truth, in [0, 2]."""
        distances = []
        for logits, truth in looks:  # (B, K) and (B,)
            probabilities = self.objective.probabilities(logits).numpy()
            distances.append(((probabilities - np.eye(logits.shape[1])[truth.numpy()]) ** 2).sum(axis=1))
        of_all = np.concatenate(distances)
        return super().scores(looks) | {"brier": dropfed.Score(float(of_all.mean()), len(of_all))}


class MyTask(dropfed.ImageClassification):
    """The task, as the entry point in ``pyproject.toml`` names it."""

    name = "my_task"
    form = MyOptions
    extensions = (".png",)  # what the names of its files end in
    scores = {"brier": dropfed.Range(lowest=0.0, highest=2.0)}  # every column that is not one of dropfed's own

    def read(self, path: Path, options: MyOptions) -> NDArray[np.uint8]:
        """Read one file: (S, S, 3) uint8, S the run's ``image_size``. A format of your own is read here."""
        return dropfed.read_colour(path, options.image_size)

    def scoring(self, objective: dropfed.Objective) -> MyScoring:
        """Score what a model answers."""
        return MyScoring(objective)
