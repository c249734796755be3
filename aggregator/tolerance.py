"""The tolerance check: a site's model enters the aggregate only if it scores on data the aggregator holds.

Lo et al. 2021: score > tolerance, strictly, accuracy by default. Names, shapes, dtypes and finiteness are
checked before anything computes with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from shared.exchange.records import TensorList
from shared.exchange.weights import check_tensors
from shared.learning.model_files import load_tensors
from shared.learning.tasks.contract import Sample, Task


class HeldOutSet:
    """The aggregator's labelled images and one model to score with."""

    def __init__(self, task: Task, model: nn.Module, samples: Sequence[Sample]) -> None:
        self._task = task
        self._model = model
        self._samples = samples

    def score(self, file: Path, tensors: TensorList, shown_as: str) -> float:
        """Mean accuracy in [0, 1] of a model file over the held-out images.

        Raises:
            PoisonError: the file does not hold exactly the run's tensors, all finite.
        """
        check_tensors(file, tensors, shown_as)
        load_tensors(self._model, tensors, file)
        return self._task.evaluate(self._model, self._samples).scores["accuracy"].mean
