"""The tolerance check: a site's model enters the aggregate only if it scores on data the aggregator holds.

Lo et al. 2021: score > tolerance, strictly. The tolerance is a number, or lies so far below what the model scores that
the sites had received. Where whole models travel, the score is one of the task's own, of a segmentation macro Dice, or
the paper's accuracy; where part of the model stays at the sites, a linear probe's on the shared part's features. Names,
shapes, dtypes and finiteness are checked before anything computes with the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from shared.errors import RejectedError
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.weights import check_tensors
from shared.learning.answers import limit_below
from shared.learning.batch_norm import batch_norms
from shared.learning.methods.contract import Method
from shared.learning.metrics import ACCURACY, accuracy, macro_dice
from shared.learning.model_files import load_tensors
from shared.learning.objectives import IGNORED, Objective, by_target
from shared.learning.probe import probe_score
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Collection, Task
from shared.learning.training import answers, evaluate, tame


def score_name(task: Task, run: RunConfiguration) -> str:
    """Return the name of the score by which a run judges whole models."""
    return run.tolerance_score or task.tolerance_scores[-1]


def probe_seed(run: RunConfiguration) -> int:
    """Return what decides the probe's folds."""
    return seed_for(run.seed, "held-out set")


@dataclass(frozen=True)
class HeldOutSet:
    """The aggregator's labelled images and one model to score with.

    Args:
        images: None where the run has no tolerance: then a model file is checked, and not scored.
        scored_by: which of the task's ``tolerance_scores`` a whole model has.
        objective: how a whole model's answers are read.
        seed: decides the probe's folds.
    """

    task: Task
    model: nn.Module
    images: Collection | None
    sharing: Sharing
    scored_by: str
    objective: Objective
    seed: int

    @classmethod
    def of_run(
        cls,
        run: RunConfiguration,
        task: Task,
        method: Method,
        model: nn.Module,
        *,
        images: Collection | None,
        sharing: Sharing,
    ) -> HeldOutSet:
        """Return what scores a run's models as the run says, the training's last objective reading their answers."""
        objective = method.objective(run.rounds, run.rounds)
        return cls(task, model, images, sharing, score_name(task, run), objective, probe_seed(run))

    def score(self, file: Path, shown_as: str) -> float | None:
        """Return the score in [0, 1] of a model file on the held-out images; None where there are none.

        Raises:
            RejectedError: the file does not hold exactly the run's tensors, all finite, or a variance is negative.
        """
        load_checked(self.model, self.sharing.shared, file, shown_as)
        return self.score_as_it_is()

    def limit(self, aggregate: Path, tolerance: BelowLast) -> float:
        """Return what a score must exceed, in [0, 1], where the sites had received this aggregate.

        One that has diverged scores what always saying one class does, never NaN. Where the aggregate scores no more
        than ``below_last``, any score above 0 will do.

        Raises:
            RejectedError: as for ``score``.
        """
        return limit_below(self.score(aggregate, aggregate.name) or 0.0, tolerance)

    def score_as_it_is(self) -> float | None:
        """Return the score in [0, 1] of the model as it is now; None where there are no images.

        Raises:
            ValueError: these images are too few to score with.
        """
        if self.images is None:
            return None
        if not self.sharing.has_whole_model:
            return probe_score(self.task, self.model, self.images, self.seed)
        if self.task.labels_pixels:
            return self._score_of_pixels(self.images)
        return evaluate(self.task, self.model, self.images.samples, self.objective).scores[self.scored_by].value or 0.0

    def _score_of_pixels(self, images: Collection) -> float:
        """Return each image's score, and the mean over images."""
        found: list[float] = []
        for _, logits, targets in answers(self.task, self.model, images.samples):
            for of_image, mask in zip(by_target(tame(logits), targets), targets, strict=True):
                counts = mask != IGNORED  # (H, W)
                found.append(self._of_pixels(of_image[counts].double(), mask[counts], len(images.classes)))
        return float(np.mean(found))

    def _of_pixels(self, logits: Tensor, targets: Tensor, classes: int) -> float:
        """Return one image's score, by (P, K) logits and (P,) targets."""
        predicted, truth = self.objective.probabilities(logits).argmax(dim=1).numpy(), targets.numpy()
        return accuracy(predicted, truth) if self.scored_by == ACCURACY else macro_dice(predicted, truth, classes)


def load_checked(model: nn.Module, tensors: TensorList, file: Path, shown_as: str) -> None:
    """Copy a model file that may hold anything into the model's state.

    Raises:
        RejectedError: the file does not hold exactly these tensors, all finite, or a variance is negative.
    """
    check_tensors(file, tensors, shown_as)
    load_tensors(model, tensors, file)
    if any(norm.running_var is not None and norm.running_var.min() < 0 for norm in batch_norms(model)):
        raise RejectedError(shown_as, "has a BatchNorm with a negative variance")
