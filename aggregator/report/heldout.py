"""What is measured anew for a report: one aggregate's answers about the aggregator's own held-out images.

Where whole models travel, the aggregate itself answers. Where part of the model stays at the sites, the aggregator has
no whole model, and the linear probe of the tolerance check answers from the shared part's features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregator.configuration import allowed_plugins, bounds_of, read_configuration
from aggregator.store import RunStore
from shared.errors import ConfigurationError, DataError, PluginError
from shared.exchange.records.run import RunConfiguration
from shared.exchange.weights import check_tensors
from shared.learning.apart import AnswerT, Progress, Question, answered
from shared.learning.cost import ModelCost, model_cost
from shared.learning.measures import task_of
from shared.learning.methods import open_method
from shared.learning.methods.contract import Method
from shared.learning.metrics import grading_scores, mean_dice
from shared.learning.model_files import load_tensors
from shared.learning.objectives import IGNORED, Evidential, Objective, by_target, entropy
from shared.learning.probe import probe_probabilities
from shared.learning.reliability import draw_targets
from shared.learning.seeds import seed_for
from shared.learning.sharing import network_of
from shared.learning.tasks.contract import Collection, Task
from shared.learning.tasks.terms import Options
from shared.learning.tolerance import probe_seed
from shared.learning.training import answers, tame

PIXELS_PER_IMAGE = 4096
"""Of an image with more pixels than this, so many are drawn for the curves; scores are over all of them."""

_EXAMPLES = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Model(ModelCost):
    """What the aggregator's model costs, asked about one image or time series of this shape.

    A head that stays at the sites is counted for the held-out images' classes; a site may have fewer or more.
    """

    image: list[int]

    @property
    def operations(self) -> str:
        """What one answer takes, in words."""
        return f"{self.flops / 1e9:.3g} GFLOPs for one image of {' × '.join(map(str, self.image))}"


@dataclass(frozen=True)
class HeldOut:
    """The aggregator's labelled images of a run's task, and what else a model needs to be asked about them."""

    task: Task[Any, Any]
    method: Method
    options: Options
    images: Collection[Any]
    run: RunConfiguration

    def untrained(self) -> nn.Module:
        """Return the run's network with random weights; a head that stays at the sites fits the classes of these
        images.
        """
        return network_of(self.run, self.task, self.method, len(self.images.classes))

    def model(self) -> Model:
        """Return what the run's model costs, asked about the first image."""
        image, _ = self.task.collate(self.images.samples[:1])
        return Model(**asdict(model_cost(self.untrained(), image)), image=list(image.shape[1:]))

    @property
    def objective(self) -> Objective:
        """How an answer is read, as the tolerance check reads it."""
        return self.method.objective(self.run.rounds, self.run.rounds)


@dataclass(frozen=True)
class Example:
    """One image, what it shows and what the model said of it.

    Args:
        number: the image's place by name, from 1.
        image: (H, W) float32.
        truth, predicted: (H, W) classes.
        uncertainty: (H, W) in [0, 1].
        dice: mean over the classes without background.
    """

    number: int
    image: NDArray[np.float32]
    truth: NDArray[np.int64]
    predicted: NDArray[np.int64]
    uncertainty: Floats
    dice: float


@dataclass(frozen=True)
class Measured:
    """N answers, each about one image or, of a segmentation, about one pixel.

    Args:
        by_probe: whether the linear probe answered, because part of the model stays at the sites.
        images: how many images the answers are about.
        about_pixels: whether an answer is about one pixel.
        classes: their names.
        truth: (N,) classes.
        probabilities: (N, K).
        uncertainty: (N,) in [0, 1].
        uncertainty_is: what that is, in words.
        scores: over all answers, also those that were not drawn; None where undefined.
        examples: the images with the lowest, the median and the highest Dice.
    """

    by_probe: bool
    images: int
    about_pixels: bool
    classes: tuple[str, ...]
    truth: NDArray[np.int64]
    probabilities: Floats
    uncertainty: Floats
    uncertainty_is: str
    scores: dict[str, float | None]
    examples: Sequence[Example] = ()

    @property
    def predicted(self) -> NDArray[np.int64]:
        """(N,) the class with the greatest probability."""
        predicted: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return predicted


def open_heldout(work: Path, run: RunConfiguration) -> HeldOut:
    """Read the held-out images of a run.

    Raises:
        ConfigurationError: ``aggregator.yaml`` names none, or cannot be read.
        DataError: names every problem of every file.
    """
    configuration = read_configuration(work)
    task, folder = task_of(run), configuration.heldout.get(run.task)
    if folder is None:
        raise ConfigurationError([f"aggregator.yaml names no held-out images of {run.task}"])
    options = task.options(run.task_options)
    images = task.open_images(work / folder, options)
    return HeldOut(task, open_method(run.method, run.method_options), options, images, run)


def find_heldout(work: Path, run: RunConfiguration) -> HeldOut | str:
    """Return the held-out images of a run, or why there are none."""
    try:
        return open_heldout(work, run)
    except (ConfigurationError, DataError) as error:
        return str(error)


class FindModel(Question[Model | str]):
    """What does a run's model cost? Or why is that not known?"""

    work: Path
    run: RunConfiguration

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"looking at the model of {self.run.run}"

    def answer(self, on_progress: Progress) -> Model | str:
        """See ``Question``."""
        heldout = find_heldout(self.work, self.run)
        return heldout if isinstance(heldout, str) else heldout.model()


def find_model(work: Path, run: RunConfiguration) -> Model | str:
    """Return what a run's model costs, or why that is not known."""
    return asked_or_why(FindModel(work=work, run=run), work, run)


def asked_or_why(question: Question[AnswerT], work: Path, run: RunConfiguration) -> AnswerT | str:
    """Return the answer to a question about a run's held-out images, or why its plug-ins cannot be asked it."""
    try:
        configuration = read_configuration(work)
        return answered(question, bounds_of(configuration), allowed_plugins(configuration, run))
    except (ConfigurationError, PluginError) as error:
        return str(error)


def measure(heldout: HeldOut, store: RunStore, aggregate: int) -> Measured:
    """Return what an aggregate says of the held-out images.

    Raises:
        DataError: it is not kept any more, is of another network, has diverged, or the images are too few for a probe.
        RejectedError: its file is damaged.
    """
    path = store.aggregate_path(aggregate)
    if not path.exists():
        raise DataError([f"the aggregate of round {aggregate} is not kept in {store.home}"])
    sharing, model = store.sharing(), heldout.untrained()
    if {*sharing.tensors, *sharing.start} - model.state_dict().keys():
        raise DataError(["this software builds another network than the one that the run trained"])
    if sharing.start:
        load_tensors(model, sharing.beginning, store.start)
    check_tensors(path, sharing.shared, str(path))
    load_tensors(model, sharing.shared, path)
    return _of_whole_model(heldout, model) if sharing.has_whole_model else _of_probe(heldout, model)


def _of_probe(heldout: HeldOut, model: nn.Module) -> Measured:
    task, images = heldout.task, heldout.images
    try:
        answered = probe_probabilities(task, model, images, probe_seed(heldout.run))
    except ValueError as error:
        raise DataError([str(error)]) from None
    if answered is None:
        raise DataError(["the model has diverged: its features are not finite"])
    truth, probabilities = answered
    uncertainty = (entropy(torch.from_numpy(probabilities)) / math.log(len(images.classes))).clamp(0, 1).numpy()
    return Measured(
        by_probe=True,
        images=len(images.samples),
        about_pixels=len(truth) > len(images.samples),
        classes=images.classes,
        truth=truth,
        probabilities=probabilities,
        uncertainty=uncertainty,
        uncertainty_is="the entropy of the probe's probabilities over its greatest, log K",
        scores={name: score.value for name, score in grading_scores(truth, probabilities, uncertainty).items()},
    )


def _of_whole_model(heldout: HeldOut, model: nn.Module) -> Measured:
    task, images, objective = heldout.task, heldout.images, heldout.objective
    scoring = task.scoring(objective)
    looks: list[Any] = []
    drawn_of: list[tuple[NDArray[np.int64], Floats, Floats]] = []
    agreement: list[float] = []
    for batch, logits, targets in answers(task, model, images.samples):
        looks.append(scoring.look(tame(logits), targets))
        for sample, image_logits, image_targets in zip(batch, by_target(logits, targets), targets, strict=True):
            truth = image_targets.reshape(-1)  # (P,)
            drawn = draw_targets(truth.numpy(), seed_for(heldout.run.seed, "report", sample.id), PIXELS_PER_IMAGE)
            flat = _flat(image_logits, image_targets)
            probabilities = objective.probabilities(flat[drawn]).numpy()
            drawn_of.append((truth[drawn].numpy(), probabilities, objective.uncertainty(flat[drawn]).numpy()))
            counts = truth != IGNORED
            predicted = objective.probabilities(flat[counts]).argmax(dim=1)
            agreement.append(mean_dice(predicted.numpy(), truth[counts].numpy(), len(images.classes)))
    truths, of_classes, uncertainties = (np.concatenate(parts) for parts in zip(*drawn_of, strict=True))
    is_segmentation = len(truths) > len(images.samples)
    return Measured(
        by_probe=False,
        images=len(images.samples),
        about_pixels=is_segmentation,
        classes=images.classes,
        truth=truths,
        probabilities=of_classes,
        uncertainty=uncertainties,
        uncertainty_is="K / S of the evidential answer"
        if isinstance(objective, Evidential)
        else "the entropy of the model's probabilities over its greatest, log K",
        scores={name: score.value for name, score in scoring.scores(looks).items()},
        examples=_examples(heldout, model, agreement) if is_segmentation else (),
    )


def _examples(heldout: HeldOut, model: nn.Module, agreement: Sequence[float]) -> list[Example]:
    """Return the images with the lowest, the median and the highest Dice."""
    order = sorted(range(len(agreement)), key=lambda index: (agreement[index], index))
    chosen = sorted({order[place * (len(order) - 1) // (_EXAMPLES - 1)] for place in range(_EXAMPLES)}, key=order.index)
    examples = []
    for index in chosen:
        sample = heldout.images.samples[index]
        inputs, _ = heldout.task.collate([sample])
        ((_, logits, targets),) = answers(heldout.task, model, [sample])
        rows, columns = ((targets[0] != IGNORED).any(dim=side).nonzero()[:, 0] for side in (1, 0))
        inside = (slice(len(rows)), slice(len(columns)))  # the rest fills the image up
        flat = _flat(by_target(logits, targets)[0], targets[0])
        predicted = heldout.objective.probabilities(flat).argmax(dim=1)
        examples.append(
            Example(
                number=index + 1,
                image=inputs[0].mean(dim=0)[inside].numpy(),
                truth=targets[0][inside].numpy(),
                predicted=predicted.reshape(targets[0].shape)[inside].numpy(),
                uncertainty=heldout.objective.uncertainty(flat).reshape(targets[0].shape)[inside].numpy(),
                dice=agreement[index],
            )
        )
    return examples


def _flat(logits: Tensor, targets: Tensor) -> Tensor:
    """Return one image's answers, one to each target: (..., K) -> (P, K); an ensemble's (..., M, K) -> (P, M, K)."""
    return tame(logits.flatten(0, targets.ndim - 1) if targets.ndim else logits[None]).double()
