"""One round's work at the site: validate the received model, measure θ, train, and write what answers the round."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared.errors import ConfigurationError, PoisonError, StandingError
from shared.exchange import names
from shared.exchange.reading import check_record, dump_yaml
from shared.exchange.records import (
    FileEntry,
    Quantiles,
    Reliability,
    RoundConfiguration,
    RunConfiguration,
    Sharing,
    TensorList,
)
from shared.exchange.tables import MetricsRow, Split, write_metrics
from shared.exchange.weights import check_tensors
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import method_named, method_options
from shared.learning.methods.contract import Method, MethodOptions
from shared.learning.methods.sharing import sharing, staying
from shared.learning.metrics import OF_CLASS, Score, ranking
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.reliability import Doubts, doubts
from shared.learning.seeds import seed_for
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Dataset, Evaluation, Options, Task
from shared.learning.training import Epoch, evaluate, train_epoch
from shared.learning.uncertainty import youden_threshold
from site_client.configuration import Policy
from site_client.policy import count_text

logger = logging.getLogger(__name__)

OnProgress = Callable[[int], None]
"""Called with percent done after every batch; raises ``Stopped`` to end the work."""


@dataclass(frozen=True)
class Files:
    """Where one round's tensors lie at the site.

    Args:
        received: the round's global model, checked.
        start: what the offer had the site begin with, checked; None if nothing stays but the personal part.
        personal: what stayed at the site after its last sealed round; None before the first.
        trained: where the trained model goes; nothing is written there in a round without epochs.
        kept: where what stays at the site goes, before ``trained``; nothing in a round without epochs.
    """

    received: Path
    start: Path | None
    personal: Path | None
    trained: Path
    kept: Path


@dataclass(frozen=True)
class Worked:
    """What a round's work came to.

    Args:
        tables: the small files of the answer by name: ``metrics.csv`` and, where the method asks for it,
            ``reliability.yaml``.
        trained: what a manifest says of the trained model; None after a round without epochs.
    """

    tables: dict[str, bytes]
    trained: FileEntry | None


@dataclass(frozen=True)
class Trainer:
    """Everything a site needs to work on one run.

    Args:
        data: the hospital's folder for the run's task.
        device: torch device for training.
    """

    run: RunConfiguration
    sharing: Sharing
    data: Path
    policy: Policy
    device: str

    @property
    def _task(self) -> Task:
        return task_named(self.run.task)

    @property
    def _method(self) -> Method:
        return method_named(self.run.method)

    @property
    def _task_options(self) -> Options:
        options: Options = self._task.options(self.run.task_options)
        return options

    @property
    def _method_options(self) -> MethodOptions:
        return method_options(self._method, self.run.method_options)

    def check_offer(self) -> None:
        """Demand that this software computes exactly what the offer says.

        Raises:
            ConfigurationError: unknown task, method or option, or other tensors than offered.
        """
        method_options(self._method, self.run.method_options)
        self._task.augmentation(self.run.augmentation)
        check_record(self.run.split, SplitPlan, "split")
        # Two classes stand for any number: what travels does not depend on it.
        model = self._task.build_model(self._task_options, 2, seed=0)
        if sharing(self._task, self._method, model) != self.sharing:
            raise ConfigurationError(["the offered tensors are not those of this software's model: update dropfed"])

    def open_dataset(self, seed: int) -> Dataset:
        """Read the hospital's images, divided by the run's split and this seed.

        Raises:
            DataError: every problem found.
        """
        split = check_record(self.run.split, SplitPlan, "split")
        return self._task.open_dataset(self.data, self._task_options, split, seed)

    def model(self, classes: int, received: Path, start: Path | None, personal: Path | None) -> nn.Module:
        """The site's whole model: what it received, and what stays here; see ``Files``.

        Raises:
            StandingError: what stayed here does not fit: the site's grades are others now.
        """
        model = self._task.build_model(self._task_options, classes, seed_for(self.run.seed, "initial model"))
        if personal is not None:
            stays = self.stays(model)
            try:
                check_tensors(personal, stays, str(personal))
            except PoisonError as error:
                raise StandingError(
                    f"{error}: were this site's grades changed since that round? put them back"
                ) from None
            load_tensors(model, stays, personal)
        elif start is not None:
            load_tensors(model, self.sharing.beginning, start)
        load_tensors(model, self.sharing.shared, received)
        return model.to(torch.device(self.device))

    def _keep(self, model: nn.Module, path: Path) -> None:
        """Write what stays here; what has diverged is not kept, and the next round goes on from the round before."""
        stays, state = self.stays(model), model.state_dict()
        if not all(state[name].isfinite().all() for name in stays.tensors):
            logger.error("what stays at this site has diverged in training: the state of the round before is kept")
        elif stays.tensors:
            save_tensors(model, stays, path)

    def stays(self, model: nn.Module) -> TensorList:
        """What of a model stays at this site."""
        return staying(self._task, self._method, model)

    def doubts(self, model: nn.Module, dataset: Dataset) -> Doubts:
        """What θ of a model is measured on: its uncertainty of the split that the run names."""
        options = self._method_options
        samples = dataset.train if options.theta_from == "train" else dataset.validation
        # λ does not enter the uncertainty: any round's objective reads a model alike.
        objective = self._method.objective(options, 1, self.run.rounds)
        return doubts(self._task, model, samples, objective, seed_for(self.run.seed, "theta"))

    def work(
        self, dataset: Dataset, configuration: RoundConfiguration, files: Files, on_progress: OnProgress
    ) -> Worked:
        """Work one round through.

        Raises:
            Stopped: by ``on_progress``.
        """
        task, method = self._task, self._method
        model = self.model(len(dataset.classes), files.received, files.start, files.personal)
        objective = method.objective(self._method_options, configuration.round, self.run.rounds)
        table = _Table(configuration, self.policy)
        tables: dict[str, bytes] = {}
        if method.sends_reliability:
            tables[names.RELIABILITY] = dump_yaml(reliability(self.doubts(model, dataset), self.policy))
        table.add(0, "validation", evaluate(task, model, dataset.validation, objective))
        table.add(0, "test", evaluate(task, model, dataset.test, objective))
        optimizer = task.optimizer(model, self._task_options, configuration.learning_rate)
        for number in range(1, configuration.epochs + 1):
            epoch = Epoch(
                learning_rate=configuration.learning_rate,
                batch_size=configuration.batch_size,
                seed=seed_for(configuration.seeds.training, number),
                augmentation=task.augmentation(configuration.augmentation),
            )
            before = number - 1

            def on_batch(done: int, total: int, before: int = before) -> None:
                on_progress(int(100 * (before + done / total) / configuration.epochs))

            trained = train_epoch(
                task, model, optimizer, dataset.train, epoch=epoch, objective=objective, on_batch=on_batch
            )
            table.add(number, "train", trained)
            table.add(number, "validation", evaluate(task, model, dataset.validation, objective))
        tables[names.METRICS] = table.content()
        if not configuration.epochs:
            return Worked(tables, None)
        self._keep(model, files.kept)
        return Worked(tables, save_tensors(model, self.sharing.shared, files.trained))


class _Table:
    """The rows of ``metrics.csv``; scores over few images stay here."""

    def __init__(self, configuration: RoundConfiguration, policy: Policy) -> None:
        self._configuration = configuration
        self._policy = policy
        self._rows: list[MetricsRow] = []

    def add(self, epoch: int, split: Split, evaluation: Evaluation) -> None:
        loss = Score(evaluation.loss, evaluation.images)
        scores = _with_a_second_class(evaluation.scores, self._policy)
        self._rows.append(
            MetricsRow(
                round_no=self._configuration.round,
                epoch=epoch,
                split=split,
                images=count_text(evaluation.images, self._policy),
                learning_rate=self._configuration.learning_rate,
                loss=_shown(loss, self._policy),
                scores={name: _shown(score, self._policy) for name, score in scores.items()},
            )
        )

    def content(self) -> bytes:
        return write_metrics(self._rows)


def _with_a_second_class(scores: dict[str, Score], policy: Policy) -> dict[str, Score]:
    """Where one class alone has too few images, the next smallest is held back with it.

    Otherwise the mean over classes less the classes that are told would tell the one that is not.
    """
    of_classes = {name: score for name, score in scores.items() if name.startswith(OF_CLASS) and score.images}
    by_size = sorted(of_classes, key=lambda name: of_classes[name].images)
    small = [name for name in by_size if of_classes[name].images < policy.minimum_count]
    return scores | {by_size[1]: Score(None, 0)} if len(small) == 1 and len(by_size) > 1 else scores


def _shown(score: Score, policy: Policy) -> float | None:
    """A score as it may leave; one over few images, or that is not finite, is absent."""
    if score.value is None or score.images < policy.minimum_count or not math.isfinite(score.value):
        return None
    return score.value


def reliability(found: Doubts, policy: Policy) -> Reliability:
    """What of a site's θ and its uncertainties may leave.

    θ and its status always do: they are the method. All else is told only over as many images as the policy wants: how
    many were wrong only if as many were wrong and right, and quantiles only if there are as many images in each tenth.
    """
    threshold = youden_threshold(found.uncertainty, found.wrong)
    fewest = min(threshold.wrong, threshold.predictions - threshold.wrong)
    may_show = found.images >= policy.minimum_count
    may_divide = may_show and fewest >= policy.minimum_count
    quantiles = None
    if found.images >= 10 * policy.minimum_count:
        shares = np.quantile(found.uncertainty, (0.1, 0.25, 0.5, 0.75, 0.9)).round(2).tolist()
        quantiles = Quantiles(**dict(zip(Quantiles.model_fields, shares, strict=True)))
    return Reliability(
        theta=threshold.theta,
        status=threshold.status,
        n=count_text(threshold.predictions if may_show else 0, policy),
        n_wrong=str(threshold.wrong) if may_divide else None,
        auroc=ranking(found.uncertainty, found.wrong).auroc() if may_divide else None,
        quantiles=quantiles,
    )


def split_counts(dataset: Dataset, policy: Policy) -> dict[Split, str]:
    """How many images each split has, as it may leave the hospital."""
    return {
        "train": count_text(len(dataset.train), policy),
        "validation": count_text(len(dataset.validation), policy),
        "test": count_text(len(dataset.test), policy),
    }
