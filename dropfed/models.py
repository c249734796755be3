"""Final models: those that a site keeps, and those that an aggregator exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dropfed.paths import path_of
from shared.errors import all_told
from shared.learning.blame import blaming
from shared.learning.kept_model import NO_THETA, KeptModel, open_model
from shared.learning.plugins import permit_installed
from shared.learning.predictions import each_answer, evaluate_kept
from shared.learning.tasks.contract import Evaluation, Sample, TabledTask, Task


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Args:
        image: the file's name without its ending; of a part of a recording ``RECORDING/0001``.
        probabilities: (K,) of each class; of a segmentation (K, H, W) of each pixel, as large as the network saw it.
        uncertainty: u, from 0 (sure) to 1: one number (), or (H, W).
    """

    image: str
    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A final model, ready for use, on the CPU.

    Args:
        network: in eval mode; what ``transform`` returns goes in, logits (B, K, ...) come out.
        task: what it was trained for.
        classes: their names, from class 0 upwards.
        theta: the uncertainty from which on the site should not trust a prediction; None of an export: each site
            measures its own.
    """

    network: nn.Module = field(repr=False)
    task: Task
    classes: tuple[str, ...]
    theta: float | None
    _kept: KeptModel = field(repr=False)

    def transform(self, path: Path | str) -> Tensor:
        """Return one image, or every image of a folder, as the network takes it: (B, C, ...) float32.

        Raises:
            DataError: names every problem of every file.
        """
        inputs, _ = self.task.collate(self._samples(path))
        return inputs

    def predict(self, path: Path | str) -> list[Prediction]:
        """Return what the model says of one image, or of every image of a folder, by name.

        Raises:
            DataError: names every problem of every file.
        """
        found = each_answer(self._kept, self._samples(path))
        return [Prediction(sample.id, probabilities, uncertainty) for sample, probabilities, uncertainty in found]

    def evaluate(self, samples: Sequence[Sample]) -> Evaluation:
        """Return how the model does on samples of its task.

        Raises:
            PluginError: a plug-in does what it must not, such as to give a score beyond its range.
        """
        with blaming(self._kept.card.plugins):
            return evaluate_kept(self._kept, samples)

    def _samples(self, path: Path | str) -> Sequence[Sample]:
        task, images, options = self.task, path_of(path, "images"), self._kept.options
        if not isinstance(task, TabledTask):
            return task.open_unlabelled(images, options)
        with all_told() as problems:
            return task.open_listed(images, options, problems)


def load(model: Path | str) -> Model:
    """Open a final model, on the CPU. No code comes with it: names, shapes and numbers of its tensors are checked.

    Args:
        model: what a site keeps, ``WORK/final/RUN``; or what ``dropfed-aggregator export`` wrote.

    Raises:
        ConfigurationError: it is neither, it is not whole, a tensor file holds something else than the model, or its
            task or method is not installed here.
    """
    permit_installed()
    kept = open_model(path_of(model, "model"))
    theta = None if kept.card.theta_status == NO_THETA else kept.card.theta
    return Model(kept.model, kept.task, tuple(kept.card.classes), theta, kept)
