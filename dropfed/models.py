"""Final models: those that a site keeps, and those that an aggregator exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregator.model_card import CARD_JSON
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.reading import parse_json, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import Digest, Record
from shared.folder.durable import hash_file
from shared.learning.methods import open_method
from shared.learning.objectives import Objective
from shared.learning.plugins import permit_installed
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Evaluation, Sample, Task
from shared.learning.tasks.terms import Options
from shared.learning.tolerance import load_checked
from shared.learning.training import evaluate
from site_client.final import CARD, open_final
from site_client.predict import predictions


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

    network: nn.Module
    task: Task
    classes: tuple[str, ...]
    theta: float | None
    _options: Options
    _objective: Objective

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
        found = predictions(self.task, self.network, self._objective, self._samples(path))
        return [Prediction(*each) for each in found]

    def evaluate(self, samples: Sequence[Sample]) -> Evaluation:
        """Return how the model does on samples of its task."""
        return evaluate(self.task, self.network, samples, self._objective)

    def _samples(self, path: Path | str) -> Sequence[Sample]:
        samples: Sequence[Sample] = self.task.open_unlabelled(Path(path), self._options)
        return samples


def load(model: Path | str) -> Model:
    """Open a final model, on the CPU. No code comes with it: names, shapes and numbers of its tensors are checked.

    Args:
        model: what a site keeps, ``WORK/final/RUN``; or what ``dropfed-aggregator export`` wrote.

    Raises:
        ConfigurationError: it is neither, it is not whole, or its task or method is not installed here.
        RejectedError: a tensor file holds something else than the model.
    """
    permit_installed()
    folder = Path(model)
    if (folder / CARD_JSON).is_file():
        return _exported(folder)
    if not (folder / CARD).is_file() and not any(folder.glob(f"*/{CARD}")):
        raise ConfigurationError(
            [f"{folder}: holds no model; name a site's WORK/final/RUN, or what `dropfed-aggregator export` wrote"]
        )
    kept = open_final(folder)
    return Model(kept.model, kept.task, tuple(kept.card.classes), kept.card.theta, kept.options, kept.objective)


# --- exports ------------------------------------------------------------------------------------------------


class _File(Record, extra="ignore"):
    """What the card says of the model's file."""

    sha256: Digest


class _Card(Record, extra="ignore"):
    """What of ``model-card.json`` must hold before the model is used; the rest is for people."""

    model: _File


def _exported(folder: Path) -> Model:
    card = parse_json(_content(folder / CARD_JSON), _Card, str(folder / CARD_JSON))
    where = folder / names.RUN_CONFIGURATION
    run, file = parse_yaml(_content(where), RunConfiguration, str(where)), folder / names.FINAL_MODEL
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options = task.options(run.task_options)
    classes: tuple[str, ...] = tuple(getattr(options, "labels", ()))
    is_private = run.privacy is not None
    network = build_network(task, method, options, max(len(classes), 2), run_seed=0, is_private=is_private)
    listed = sharing(task, method, network)
    if listed.start or listed.personal or listed.with_final:
        raise ConfigurationError(
            [f"{folder}: is no whole model, for each site keeps a part of it; name a site's WORK/final/RUN"]
        )
    if not file.is_file() or hash_file(file)[1] != card.model.sha256:
        raise ConfigurationError([f"{file}: is missing, or another than its card says; export the model again"])
    load_checked(network, listed.shared, file, str(file))
    return Model(network.eval(), task, classes, None, options, method.objective(run.rounds, run.rounds))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read ({error.strerror}); export the model again"]) from None
