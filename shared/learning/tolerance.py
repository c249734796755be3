"""The tolerance check: a site's model enters the aggregate only if it scores on data the aggregator holds.

Lo et al. 2021: score > tolerance, strictly. Where whole models travel, the score is the task's own, accuracy for a
segmentation; where part of the model stays at the sites, a linear probe's on the shared part's features. Names, shapes,
dtypes and finiteness are checked before anything computes with the file.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from shared.errors import PoisonError
from shared.exchange.records import Sharing, TensorList
from shared.exchange.weights import check_tensors
from shared.learning.batch_norm import batch_norms
from shared.learning.model_files import load_tensors
from shared.learning.objectives import Objective
from shared.learning.probe import probe_score
from shared.learning.tasks.contract import Collection, Task
from shared.learning.training import evaluate


class HeldOutSet:
    """The aggregator's labelled images and one model to score with.

    Args:
        images: None where the run has no tolerance: then a model file is checked, and not scored.
        objective: how a whole model's answers are read.
        seed: decides the probe's folds.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        images: Collection | None,
        sharing: Sharing,
        *,
        objective: Objective,
        seed: int,
    ) -> None:
        self._task = task
        self._model = model
        self._images = images
        self._sharing = sharing
        self._objective = objective
        self._seed = seed

    def score(self, file: Path, shown_as: str) -> float | None:
        """The score in [0, 1] of a model file on the held-out images; None where there are none.

        Raises:
            PoisonError: the file does not hold exactly the run's tensors, all finite, or a variance is negative.
        """
        load_checked(self._model, self._sharing.shared, file, shown_as)
        return self.score_as_it_is()

    def score_as_it_is(self) -> float | None:
        """The score in [0, 1] of the model as it is now; None where there are no images.

        Raises:
            ValueError: these images are too few to score with.
        """
        if self._images is None:
            return None
        if not self._sharing.has_whole_model:
            return probe_score(self._task, self._model, self._images, self._seed)
        evaluation = evaluate(self._task, self._model, self._images.samples, self._objective)
        return evaluation.scores[self._task.tolerance_score].value or 0.0


def load_checked(model: nn.Module, tensors: TensorList, file: Path, shown_as: str) -> None:
    """Copy a model file that may hold anything into the model's state.

    Raises:
        PoisonError: the file does not hold exactly these tensors, all finite, or a variance is negative.
    """
    check_tensors(file, tensors, shown_as)
    load_tensors(model, tensors, file)
    if any(norm.running_var is not None and norm.running_var.min() < 0 for norm in batch_norms(model)):
        raise PoisonError(shown_as, "has a BatchNorm with a negative variance")
