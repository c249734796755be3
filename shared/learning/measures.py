"""Scores of others, reported beside a task's own: functions of what a model says and of what is true.

A wheel provides them by the entry points ``dropfed.scores``, and a run names them under ``scores``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shared.errors import ConfigurationError, FaultError
from shared.exchange.records.run import Range, RunConfiguration
from shared.exchange.tables import is_declared
from shared.learning import plugins, shapes
from shared.learning.metrics import Score
from shared.learning.objectives import IGNORED, Objective, by_target
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Scoring, Task

Compute = Callable[[NDArray[np.float64], NDArray[np.int64]], float | None]
_Answered = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Measure:
    """A score.

    Args:
        compute: of (N, K) probabilities, in [0, 1] and 1 in each row's sum, and the (N,) classes that are true, in
            [0, K), returns the score, or None where there is none. The rows are a set's images; of a segmentation the
            pixels of one image, and the mean over images is reported.
        range: in which it lies.
        is_of_shapes: whether it asks for an image as it is: (H, W, K) probabilities and (H, W) classes. Then the run's
            task must label pixels.
    """

    compute: Compute
    range: Range
    is_of_shapes: bool = False


OF_SHAPES: Mapping[str, Measure] = {
    "hausdorff_95": Measure(shapes.hausdorff_95, Range(lowest=0), is_of_shapes=True),
    "nested_dice": Measure(shapes.nested_dice, Range(lowest=0, highest=1), is_of_shapes=True),
    "cup_to_disc_error": Measure(shapes.cup_to_disc_error, Range(lowest=0, highest=1), is_of_shapes=True),
}
"""Those that need no wheel."""


def task_of(run: RunConfiguration) -> Task:
    """Return a run's task, which tells the scores of others that the run names beside its own.

    Raises:
        ConfigurationError: there is no such task or score, or it is of a wheel that is not permitted here.
    """
    task = task_named(run.task)
    if run.trainer is not None:  # what it names is what the sites' program tells
        return task
    return with_measures(task, run.scores)


def with_measures(task: Task, scores: Mapping[str, Range]) -> Task:
    """Return a task that tells further scores, beside its own.

    Args:
        scores: by name, the range of each.

    Raises:
        ConfigurationError: there is no such score, it is about masks that the task has not, or it is of a wheel that
            may not be imported here.
    """
    others = {name: _measure(name, told) for name, told in scores.items() if name not in task.scores}
    if of_masks := sorted(name for name, measure in others.items() if measure.is_of_shapes and not task.labels_pixels):
        raise ConfigurationError([f"scores: {', '.join(of_masks)}: of masks, which {task.name} has not; leave it out"])
    return cast(Task, _MeasuredTask(task, others)) if others else task


def _measure(name: str, told: Range) -> Measure:
    """Return the score of somebody's wheel.

    Args:
        told: its range, as a run says it; as yet unsaid, it is not bounded.

    Raises:
        ConfigurationError: there is none, or it is something else.
    """
    found = OF_SHAPES.get(name) or plugins.load("scores", name)
    if found is None:
        known = ", ".join(sorted([*OF_SHAPES, *plugins.provided("scores")]))
        raise ConfigurationError([f"scores: there is no {name}, here or in an installed wheel; there are: {known}"])
    if not isinstance(found, Measure):
        raise ConfigurationError([f"scores: what its wheel provides as {name} is no dropfed.Measure; correct it"])
    if is_declared(name):
        raise ConfigurationError(
            [f"scores: {name} is a score of dropfed's own; have the wheel call it by another name"]
        )
    if told not in (Range(), found.range):
        raise ConfigurationError([f"scores: {name} lies elsewhere, as its wheel says; write `{name}: {{}}`"])
    return found


class _MeasuredTask:
    """A task that tells further scores; all else is the task's."""

    def __init__(self, task: Task, measures: Mapping[str, Measure]) -> None:
        self._task, self._measures = task, measures

    def __getattr__(self, part: str) -> Any:
        return getattr(self._task, part)

    @property
    def scores(self) -> Mapping[str, Range]:
        """Its columns, each with its range."""
        return {**self._task.scores, **{name: measure.range for name, measure in self._measures.items()}}

    def scoring(self, objective: Objective) -> Scoring:
        """Return how answers are scored that are read by an objective."""
        return _MeasuredScoring(self._task, objective, self._measures)


class _MeasuredScoring(Scoring[Any]):
    """The task's scoring, and each measure."""

    def __init__(self, task: Task, objective: Objective, measures: Mapping[str, Measure]) -> None:
        self._own: Scoring = task.scoring(objective)
        self._objective, self._measures, self._is_of_pixels = objective, measures, task.labels_pixels

    def look(self, logits: Tensor, targets: Tensor) -> tuple[Any, dict[str, list[float | None]] | _Answered]:
        """Return what the task's scoring sees, and either the measures of each image or what is measured at the end."""
        images = [
            self._answered(each[counts], target[counts])
            for each, target in zip(by_target(logits, targets), targets, strict=True)
            for counts in [target != IGNORED]
        ]
        shown = [_in_shape(image, target != IGNORED) for image, target in zip(images, targets, strict=True)]
        seen = {
            name: [_value(measure, *image) for image in (shown if measure.is_of_shapes else images)]
            for name, measure in self._measures.items()
        }
        return self._own.look(logits, targets), seen if self._is_of_pixels else _together(images)

    def _answered(self, logits: Tensor, targets: Tensor) -> _Answered:
        flat = logits.double().reshape(targets.numel(), *logits.shape[targets.ndim :])  # (N, K), or (N, M, K)
        return self._objective.probabilities(flat).cpu().numpy(), targets.reshape(-1).cpu().numpy()

    def scores(self, looks: Sequence[Any]) -> dict[str, Score]:
        """Return the task's scores, and the measures."""
        own = self._own.scores([look for look, _ in looks])
        seen = [each for _, each in looks]
        return own | (self._over_images(seen) if self._is_of_pixels else self._of_all(_together(seen)))

    def score(self, looks: Sequence[Any], name: str) -> float | None:
        """Return one of the scores; the task computes its own in its best way."""
        if name in self._measures:
            return super().score(looks, name)
        return self._own.score([look for look, _ in looks], name)

    def _over_images(self, seen: Sequence[Mapping[str, list[float | None]]]) -> dict[str, Score]:
        """Return the mean over images. Where an image has no value, it is over part of the set, and so over one."""
        found = {}
        for name in self._measures:
            values = [value for look in seen for value in look[name]]
            defined = [value for value in values if value is not None]
            images = len(defined) if len(defined) == len(values) else min(len(defined), 1)
            found[name] = Score(float(np.mean(defined)) if defined else None, images)
        return found

    def _of_all(self, answered: _Answered) -> dict[str, Score]:
        return {name: Score(_value(measure, *answered), len(answered[1])) for name, measure in self._measures.items()}


def _in_shape(image: _Answered, counts: Tensor) -> _Answered:
    """Return what was answered of an image's pixels where they lie: (H, W, K) and (H, W).

    Args:
        counts: (H', W') which pixels of a batch's square are the image's; they fill its upper left.
    """
    if counts.ndim < 2:
        return image
    height, width = int(counts.any(dim=1).sum()), int(counts.any(dim=0).sum())
    return image[0].reshape(height, width, -1), image[1].reshape(height, width)


def _together(answered: Sequence[_Answered]) -> _Answered:
    probabilities, truths = zip(*answered, strict=True)
    return np.concatenate(probabilities), np.concatenate(truths)


def _value(measure: Measure, probabilities: NDArray[np.float64], truth: NDArray[np.int64]) -> float | None:
    value = measure.compute(probabilities, truth)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise FaultError(measure.compute, f"gave {type(value).__name__}, not a number or None") from None
