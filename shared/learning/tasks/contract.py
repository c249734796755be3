"""What a task is: the data, the model and the measures that a federation trains for.

A task knows nothing of rounds, sites or folders. A daemon asks it to read its data, to build the model, to train one
epoch and to evaluate; a method (see ``shared/learning/methods``) decides what happens to the weights in between.
To add a task, write one file with one class that keeps this contract and name it in ``shared/learning/tasks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitPlan

OnBatch = Callable[[int, int], None]
"""Called after each batch with (batches done, batches in all); what it raises stops the epoch and passes through."""


class Options(BaseModel):
    """Base of every task's options: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


OptionsT = TypeVar("OptionsT", bound=Options, default=Any)


@dataclass(frozen=True)
class Statistic:
    """A score over images: its mean and its population standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class Evaluation:
    """How a model did on a set of images.

    Args:
        images: how many different images were looked at.
        loss: the task's loss, mean over images.
        scores: the task's scores by name, each over images.
    """

    images: int
    loss: float
    scores: dict[str, Statistic]


@dataclass(frozen=True)
class Epoch:
    """Everything that decides one local epoch, beside the weights and the images."""

    learning_rate: float
    batch_size: int
    seed: int
    augmentation: Augmentation


@dataclass(frozen=True)
class Sample:
    """One image and what the model should say about it.

    Args:
        id: the file's stem, unique within its folder.
        image: (H, W) float32 in [0, 1].
        mask: (H, W) uint8, the class of each pixel.
    """

    id: str
    image: NDArray[np.float32]
    mask: NDArray[np.uint8]


@dataclass(frozen=True)
class Dataset:
    """One site's images; no group of images is in two of the three."""

    train: Sequence[Sample]
    validation: Sequence[Sample]
    test: Sequence[Sample]


class Task(Protocol[OptionsT]):
    """One learning problem. ``Task`` alone means: a task, whatever its options."""

    @property
    def name(self) -> str:
        """The name a run's configuration calls it by."""

    @property
    def selection_score(self) -> str:
        """The score by which the best aggregate of a run is chosen; higher is better."""

    def options(self, raw: Mapping[str, object]) -> OptionsT:
        """The task's options, checked.

        Raises:
            ConfigurationError: names every key that is unknown or wrong, and the remedy.
        """

    def build_model(self, options: OptionsT, seed: int) -> torch.nn.Module:
        """The untrained model on the CPU; its weights depend on the seed alone."""

    def open_dataset(self, root: Path, options: OptionsT, split: SplitPlan, seed: int) -> Dataset:
        """Reads and checks every file of a site.

        Args:
            root: the site's data folder.
            options: the task's options.
            split: how the images are divided.
            seed: decides the division where no split file does.

        Raises:
            DataError: names every problem of every file.
        """

    def open_images(self, root: Path, options: OptionsT) -> list[Sample]:
        """Reads and checks every file of a folder that is not divided: the aggregator's held-out images.

        Raises:
            DataError: names every problem of every file.
        """

    def optimizer(self, model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        """A new optimizer over the model's trainable parameters."""

    def train_epoch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: Sequence[Sample],
        epoch: Epoch,
        on_batch: OnBatch,
    ) -> Evaluation:
        """Trains one epoch in place, on the device where the model is.

        On the CPU, with a fixed number of threads, the same weights, samples and epoch give the same weights, bit by
        bit.

        Returns:
            How the model did on the images as it was trained on them: augmented, dropout on, weights moving.

        Raises:
            ValueError: there are no samples, or the batch size is below 1.
            Whatever ``on_batch`` raises.
        """

    def evaluate(self, model: torch.nn.Module, samples: Sequence[Sample]) -> Evaluation:
        """Evaluates in eval mode, without gradients, one image at a time; the model is left in the mode it was in.

        Raises:
            ValueError: there are no samples.
        """
