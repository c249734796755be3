"""One round's work at the site: validate the received model, train, and write the answer's two files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from shared.errors import ConfigurationError
from shared.exchange.reading import check_record
from shared.exchange.records import RoundConfiguration, RunConfiguration, TensorList
from shared.exchange.tables import MetricsRow, Split, write_metrics
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import method_named
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.seeds import seed_for
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Dataset, Epoch, Evaluation
from site_client.configuration import Policy
from site_client.policy import count_text

OnProgress = Callable[[int], None]
"""Called with percent done after every batch; raises ``Stopped`` to end the work."""


@dataclass(frozen=True)
class Trainer:
    """Everything a site needs to work on one run.

    Args:
        data: the hospital's folder for the run's task.
        device: torch device for training.
    """

    run: RunConfiguration
    tensors: TensorList
    data: Path
    policy: Policy
    device: str

    def check_offer(self) -> None:
        """Demand that this software computes exactly what the offer says.

        Raises:
            ConfigurationError: unknown task, method or option, or other tensors than offered.
        """
        task = task_named(self.run.task)
        method = method_named(self.run.method)
        check_record(self.run.augmentation, Augmentation, "augmentation")
        check_record(self.run.split, SplitPlan, "split")
        model = task.build_model(task.options(self.run.task_options), seed=0)
        if method.shared_tensors(model) != self.tensors:
            raise ConfigurationError(["the offered tensors are not those of this software's model: update dropfed"])

    def open_dataset(self, seed: int) -> Dataset:
        """Read the hospital's images, divided by the run's split and this seed.

        Raises:
            DataError: every problem found.
        """
        task = task_named(self.run.task)
        split = check_record(self.run.split, SplitPlan, "split")
        return task.open_dataset(self.data, task.options(self.run.task_options), split, seed)

    def work(
        self,
        dataset: Dataset,
        configuration: RoundConfiguration,
        received: Path,
        target: Path,
        on_progress: OnProgress,
    ) -> bytes:
        """Work one round through.

        Args:
            received: the round's global model, checked.
            target: where the trained model goes; nothing is written there in a round without epochs.

        Returns:
            The bytes of ``metrics.csv``.

        Raises:
            Stopped: by ``on_progress``.
        """
        task = task_named(self.run.task)
        model = task.build_model(task.options(self.run.task_options), seed=0)
        load_tensors(model, self.tensors, received)
        model.to(torch.device(self.device))
        table = _Table(configuration, self.policy)
        table.add(0, "validation", task.evaluate(model, dataset.validation))
        table.add(0, "test", task.evaluate(model, dataset.test))
        optimizer = task.optimizer(model, configuration.learning_rate)
        for number in range(1, configuration.epochs + 1):
            epoch = Epoch(
                learning_rate=configuration.learning_rate,
                batch_size=configuration.batch_size,
                seed=seed_for(configuration.seeds.training, number),
                augmentation=check_record(configuration.augmentation, Augmentation, "augmentation"),
            )
            before = number - 1

            def on_batch(done: int, total: int, before: int = before) -> None:
                on_progress(int(100 * (before + done / total) / configuration.epochs))

            table.add(number, "train", task.train_epoch(model, optimizer, dataset.train, epoch, on_batch))
            table.add(number, "validation", task.evaluate(model, dataset.validation))
        if configuration.epochs:
            save_tensors(model, self.tensors, target)
        return table.content()


class _Table:
    """The rows of ``metrics.csv``; splits of few images keep their scores to themselves."""

    def __init__(self, configuration: RoundConfiguration, policy: Policy) -> None:
        self._configuration = configuration
        self._policy = policy
        self._rows: list[MetricsRow] = []

    def add(self, epoch: int, split: Split, evaluation: Evaluation) -> None:
        may_show = evaluation.images >= self._policy.minimum_count
        scores: dict[str, float | None] = {}
        for name, statistic in evaluation.scores.items():
            scores[f"{name}_mean"] = _shown(statistic.mean, may_show)
            scores[f"{name}_std"] = _shown(statistic.std, may_show)
        self._rows.append(
            MetricsRow(
                round_no=self._configuration.round,
                epoch=epoch,
                split=split,
                images=count_text(evaluation.images, self._policy),
                learning_rate=self._configuration.learning_rate,
                loss=_shown(evaluation.loss, may_show),
                scores=scores,
            )
        )

    def content(self) -> bytes:
        return write_metrics(self._rows)


def _shown(value: float, may_show: bool) -> float | None:
    """A score as it may leave; one that is not finite is absent."""
    return value if may_show and math.isfinite(value) else None


def split_counts(dataset: Dataset, policy: Policy) -> dict[Split, str]:
    """How many images each split has, as it may leave the hospital."""
    return {
        "train": count_text(len(dataset.train), policy),
        "validation": count_text(len(dataset.validation), policy),
        "test": count_text(len(dataset.test), policy),
    }
